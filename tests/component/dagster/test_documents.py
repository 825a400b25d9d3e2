"""The site of the documentation in the web server, and the links of assets and alerts to it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import PROJECT_ROOT

from topicberg import documents
from topicberg.documents import ROUTE, RUNBOOK, address_of, docs_folder
from topicberg.orchestration.assets.metadata import documentation
from topicberg.settings import settings

SITE = PROJECT_ROOT / "site"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOPICBERG_DOCS_URL", "https://docs.example.org/topicberg/")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def test_folder_of_the_site_is_that_of_the_clone() -> None:
    assert docs_folder() == SITE, "run `make docs`"


def test_site_loads_nothing_from_elsewhere() -> None:
    elsewhere = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="https?:[^"]+')
    for page in SITE.rglob("*.html"):
        assert elsewhere.findall(page.read_text()) == [], page.name


def test_pages_that_assets_and_alerts_link_to_are_in_the_site() -> None:
    sources = [*(PROJECT_ROOT / "platform").rglob("*.py"), *(PROJECT_ROOT / "assets").rglob("*.py")]
    texts = "\n".join(path.read_text() for path in sources)
    pages = {RUNBOOK, *re.findall(r'(?:documentation|address_of)\("([^"]+)"', texts)}
    assert len(pages) > 6
    for page in pages:
        address, _, anchor = (address_of(page) or "").removeprefix(f"{ROUTE}/").partition("#")
        text = (SITE / address).read_text()
        assert not anchor or f'id="{anchor}"' in text, page


def test_asset_links_to_the_web_server_and_alert_to_its_address() -> None:
    assert documentation("tableflow.md")["documentation"].value == f"{ROUTE}/tableflow.html"
    assert (
        address_of(RUNBOOK, "http://ui:3000/") == f"http://ui:3000{ROUTE}/operate.html#by-symptom"
    )
    assert address_of("README.md") == f"{ROUTE}/index.html"


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
    assert 'id="by-symptom"' in own.get(f"{ROUTE}/operate.html").text
    assert own.get(f"{ROUTE}/").text == own.get(f"{ROUTE}/index.html").text
    assert own.get(f"{ROUTE}/images/flight.png").headers["content-type"] == "image/png"
    assert "replicas" in own.get(f"{ROUTE}/production/engine.yaml").text
    for path in ("none.html", "..%2fpyproject.toml", "images", "%2fetc%2fpasswd"):
        assert own.get(f"{ROUTE}/{path}").status_code == 404, path
    assert own.get("/server_info").json()["dagster_version"]
    other = TestClient(app, base_url="http://elsewhere.example")
    assert other.get(f"{ROUTE}/operate.html").status_code == 403
    guard_webservers(Settings(), lambda client, server: True)
    local = DagsterWebserver(context).create_asgi_app()
    first = TestClient(Starlette(routes=local.router.routes)).get("/", follow_redirects=False)
    assert first.headers["location"] == "/asset-groups"
"""


def test_guarded_web_server_of_dagster_serves_the_site_and_nothing_else() -> None:
    """In a process of its own, as what is guarded stays so."""
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("published")
def test_links_lead_to_the_published_site_if_there_is_one() -> None:
    link = documentation("tableflow.md")["documentation"].value
    assert link == "https://docs.example.org/topicberg/tableflow.html"
    assert (
        address_of(RUNBOOK, "http://ui")
        == "https://docs.example.org/topicberg/operate.html#by-symptom"
    )


def test_links_are_left_out_where_the_site_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "__file__", str(tmp_path / "topicberg" / "documents.py"))
    docs_folder.cache_clear()
    try:
        assert documentation("tableflow.md") == {}
    finally:
        monkeypatch.undo()
        docs_folder.cache_clear()
