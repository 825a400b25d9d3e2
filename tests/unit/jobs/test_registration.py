"""Tables that are registered within a tick: what fails or hangs stops no other table."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import dagster as dg
import pytest

from topicberg.orchestration.assets.tables import LakeTable
from topicberg.orchestration.jobs import registration
from topicberg.orchestration.jobs.registration import AT_ONCE, Registrar

LATE, BROKEN = "late", "broken"


def table(name: str) -> LakeTable:
    return LakeTable(name, ("ns", name), "shop")


class Catalogs:
    """Some tables cannot be registered, and some not before ``answers``."""

    def __init__(self) -> None:
        self.answers, self.asked = Event(), list[str]()

    def move(self, table: LakeTable) -> list[dg.AssetMaterialization]:
        self.asked.append(table.name)
        if table.name.startswith(BROKEN):
            raise ValueError("no such database")
        if table.name.startswith(LATE):
            self.answers.wait(60)
        return [dg.AssetMaterialization(table.key("glue"))]


@pytest.fixture
def catalogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalogs]:
    monkeypatch.setattr(registration, "SECONDS", 0.5)
    monkeypatch.setattr(registration, "PATIENCE_SECONDS", 0.5)
    found = Catalogs()
    yield found
    found.answers.set()


def test_failure_stops_no_other(catalogs: Catalogs) -> None:
    found = Registrar(catalogs.move).register([table("a"), table(BROKEN), table("b")])
    assert set(found.events) == {"a", "b"}
    assert [str(error) for error in found.failed.values()] == ["no such database"]


def test_table_that_hangs_is_given_up(catalogs: Catalogs) -> None:
    registrar = Registrar(catalogs.move)
    hanging = [table(f"{LATE}{number}") for number in range(AT_ONCE)]
    found = registrar.register([table("a"), *hanging, table("z")])
    assert set(found.events) >= {"a"}
    assert set(found.failed) <= {each.name for each in hanging}
    assert "z" not in found.failed, "it was not begun: the next tick does it"
    assert set(registrar.register([table("z")]).events) == {"z"}, "other threads do it"


def test_runs_register_for_a_while_after_silence(
    catalogs: Catalogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    registrar = Registrar(catalogs.move)
    registrar.register([table(LATE)])
    assert set(registrar.register([table("a")]).failed) == {"a"}
    assert catalogs.asked == [LATE]
    monkeypatch.setattr(registration, "PAUSE_SECONDS", 0.0)
    registrar = Registrar(catalogs.move)
    registrar.register([table(LATE)])
    assert set(registrar.register([table("a")]).events) == {"a"}


def test_broken_table_is_no_silence(catalogs: Catalogs) -> None:
    registrar = Registrar(catalogs.move)
    registrar.register([table(BROKEN)])
    assert set(registrar.register([table("a")]).events) == {"a"}


def test_nothing_to_register_is_no_failure(catalogs: Catalogs) -> None:
    registrar = Registrar(catalogs.move)
    registrar.register([])
    assert set(registrar.register([table("a")]).events) == {"a"}
