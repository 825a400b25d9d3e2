"""The pages of ``docs/`` in the web server, and the links of assets and alerts to them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import PROJECT_ROOT
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from topicberg import documents
from topicberg.dagster.documents import route
from topicberg.documents import ROUTE, RUNBOOK, address_of, docs_folder
from topicberg.orchestration.assets.metadata import documentation
from topicberg.settings import settings

PAGES = sorted((PROJECT_ROOT / "docs").glob("*.md"))


async def _every_path(_request: object) -> PlainTextResponse:
    return PlainTextResponse("Dagster")


@pytest.fixture(scope="module")
def client() -> TestClient:
    """As Dagster's: its own route takes every path."""
    app = Starlette(routes=[Route("/{path:path}", _every_path)])
    app.router.routes.insert(0, route())
    return TestClient(app)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOPICBERG_DOCS_URL", "https://docs.example.org/topicberg/")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def test_folder_of_the_pages_is_that_of_the_clone() -> None:
    assert docs_folder() == PROJECT_ROOT / "docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_is_served_with_the_anchors_that_links_use(client: TestClient, page: Path) -> None:
    response = client.get(f"{ROUTE}/{page.name}")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    for target, anchor in re.findall(r"\]\(([\w-]+\.md)?#([\w-]+)\)", page.read_text()):
        linked = client.get(f"{ROUTE}/{target or page.name}").text
        assert f'id="{anchor}"' in linked, f"{target or page.name}#{anchor}"


def test_picture_and_file_are_served(client: TestClient) -> None:
    assert client.get(f"{ROUTE}/images/flight.png").headers["content-type"] == "image/png"
    assert "replicas" in client.get(f"{ROUTE}/production/engine.yaml").text


@pytest.mark.parametrize(
    "path", ["none.md", "../pyproject.toml", "..%2fpyproject.toml", "images", "/etc/passwd", ""]
)
def test_nothing_outside_of_the_pages_is_served(client: TestClient, path: str) -> None:
    response = client.get(f"{ROUTE}/{path}")
    assert response.status_code == 404 or response.text == "Dagster"


def test_assets_link_to_the_web_server_and_alerts_to_its_address(client: TestClient) -> None:
    link = documentation("tableflow.md")["documentation"].value
    assert link == f"{ROUTE}/tableflow.md"
    assert client.get(str(link)).status_code == 200
    runbook = address_of(RUNBOOK, "http://ui:3000/") or ""
    assert runbook == f"http://ui:3000{ROUTE}/operate.md#by-symptom"
    page, _, anchor = runbook.removeprefix("http://ui:3000").partition("#")
    assert f'id="{anchor}"' in client.get(page).text


GUARDED = """
import dagster as dg
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.webserver import DagsterWebserver
from starlette.applications import Starlette
from starlette.testclient import TestClient
from topicberg.dagster.webserver import guard_webservers
from topicberg.documents import ROUTE
from topicberg.settings import Settings

guard_webservers(Settings())
target = EmptyWorkspaceTarget()
with dg.instance_for_test() as instance, WorkspaceProcessContext(instance, target) as context:
    app = DagsterWebserver(context).create_asgi_app()
    own = TestClient(app, base_url="http://127.0.0.1:3000")
    assert "By symptom</h2>" in own.get(f"{ROUTE}/operate.md").text
    assert own.get("/server_info").json()["dagster_version"]
    other = TestClient(app, base_url="http://elsewhere.example")
    assert other.get(f"{ROUTE}/operate.md").status_code == 403
    guard_webservers(Settings(), lambda client, server: True)
    local = DagsterWebserver(context).create_asgi_app()
    first = TestClient(Starlette(routes=local.router.routes)).get("/", follow_redirects=False)
    assert first.headers["location"] == "/asset-groups"
"""


def test_guarded_web_server_of_dagster_serves_the_pages() -> None:
    """In a process of its own, as what is guarded stays so."""
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("published")
def test_links_lead_to_the_published_pages_if_there_are_any() -> None:
    link = documentation("tableflow.md")["documentation"].value
    assert link == "https://docs.example.org/topicberg/tableflow.md"
    assert address_of(RUNBOOK, "http://ui") == f"https://docs.example.org/topicberg/{RUNBOOK}"


def test_links_are_left_out_where_there_are_no_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "__file__", str(tmp_path / "topicberg" / "documents.py"))
    docs_folder.cache_clear()
    try:
        assert documentation("tableflow.md") == {}
    finally:
        monkeypatch.undo()
        docs_folder.cache_clear()
