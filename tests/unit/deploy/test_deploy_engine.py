"""Plan, create and delete over a graph of resources whose context is a dictionary."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from record_pages import InMemory

from topicberg.clients.confluent import ApiError, ConflictError, GoneError, UncertainError
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.topics import TopicSpec, load_topic, load_topics
from topicberg_deploy import engine, polling
from topicberg_deploy.confluent.integrations import PROVIDER_INTEGRATION
from topicberg_deploy.confluent.organization import RoleBinding
from topicberg_deploy.context import CLUSTER, REGISTRY, DeployContext
from topicberg_deploy.lock import LockLostError
from topicberg_deploy.platform import resources
from topicberg_deploy.record import PAGE_CHARACTERS, CreationRecord
from topicberg_deploy.resource import CannotChangeError, Changes, Fields, Live, Resource
from topicberg_deploy.snowflake.principals import Grant
from topicberg_deploy.snowflake.tables import IcebergTable, LinkedTable

CONFIG = Settings(prefix="demo")


@dataclass(frozen=True)
class Thing(Resource):
    """Lives in the dictionary ``there``; ``trouble`` is raised by its next calls, in order."""

    size: int = 1
    kind = "thing"
    replaced_for = frozenset({"color"})

    def find(self, context: DeployContext) -> Live | None:
        fields = _there(context).get(self.key)
        return None if fields is None else Live(self.key, dict(fields))

    def desired(self, context: DeployContext) -> Fields:
        return {"size": self.size, "color": "blue"}

    def create(self, context: DeployContext) -> None:
        _there(context)[self.key] = self.desired(context)
        _log(context).append(f"create {self.key}")
        _stumble(context, self.key)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        _there(context)[self.key] |= {name: new for name, (_, new) in changes.items()}
        _log(context).append(f"update {self.key}")
        _stumble(context, self.key)

    def delete(self, context: DeployContext, live: Live) -> None:
        if self.key in cast(Any, context).vanishes:
            _there(context).pop(self.key, None)
        _stumble(context, self.key)
        del _there(context)[self.key]
        _log(context).append(f"delete {self.key}")


@dataclass(frozen=True)
class Moved(Thing):
    """Its vendor gives it an id."""

    def find(self, context: DeployContext) -> Live | None:
        live = super().find(context)
        return live and replace(live, id=live.fields.get("id", "first"))


@dataclass(frozen=True)
class Precious(Thing):
    holds_data = True


@dataclass(frozen=True)
class TwoParts(Thing):
    """Its first request makes it with a size of 0, its second sets the size."""

    def create(self, context: DeployContext) -> None:
        _there(context)[self.key] = {**self.desired(context), "size": 0}
        _stumble(context, self.key)
        _there(context)[self.key] = self.desired(context)


class Toy:
    """The part of a deploy context that the engine uses."""

    poll = DeployContext.poll
    irrevocable = False

    def __init__(self) -> None:
        self.there: dict[str, Fields] = {}
        self.log: list[str] = []
        self.trouble: dict[str, list[Exception]] = {}
        self.live: dict[str, Live] = {}
        self.waiting: dict[str, str] = {}
        self.fresh: set[str] = set()
        self.waiting_since: dict[str, float] = {}
        self.vanishes: set[str] = set()
        self.deploy = SimpleNamespace(profile=None)
        self.pages: dict[int, str] = {}
        self.forget()

    def forget(self) -> None:
        """As another process finds it."""
        self.record = CreationRecord(InMemory(self.pages))
        self.ours: set[str] = set()
        self.claimed: frozenset[str] = frozenset()
        self.kept: dict[str, str] = {}
        self.unseen: dict[str, str] = {}

    def sleep(self, _: float) -> None:
        pass

    need = DeployContext.need


def _there(context: DeployContext) -> dict[str, Fields]:
    return cast(Any, context).there


def _log(context: DeployContext) -> list[str]:
    return cast(Any, context).log


def _stumble(context: DeployContext, key: str) -> None:
    trouble = cast(Any, context).trouble.get(key)
    if trouble:
        raise trouble.pop(0)


@pytest.fixture
def context() -> DeployContext:
    return cast(DeployContext, Toy())


GRAPH = [Thing("c", "C", ("b",), ("b",)), Thing("a", "A"), Thing("b", "B", ("a",), ("a",))]


def quiet(*_: object) -> None:
    pass


def actions(context: DeployContext, graph: Sequence[Thing] = GRAPH) -> dict[str, str]:
    return {step.resource.key: step.action.value for step in engine.plan(graph, context)}


def test_create_goes_in_order_and_then_the_plan_is_empty(context: DeployContext) -> None:
    assert actions(context) == {"a": "create", "b": "create", "c": "create"}
    engine.create(GRAPH, context, quiet)
    assert _log(context) == ["create a", "create b", "create c"]
    assert set(actions(context).values()) == {"keep"}


@dataclass(frozen=True)
class Denied(Thing):
    """The user may not read it."""

    def find(self, context: DeployContext) -> Live | None:
        error = {"Code": "AccessDeniedException", "Message": "no list"}
        raise ClientError({"Error": cast(Any, error)}, "List")


def test_plan_names_what_it_cannot_read(context: DeployContext) -> None:
    graph = [Thing("a", "A"), Denied("b", "B"), Denied("c", "C"), Thing("d", "D", ("c",))]
    with pytest.raises(engine.DeployError, match="2 resources cannot be planned") as raised:
        engine.plan(graph, context)
    assert "thing B: ClientError: An error occurred (AccessDenied" in str(raised.value)
    assert "thing C: ClientError" in str(raised.value)


def test_an_answer_that_was_lost_makes_no_second_one(context: DeployContext) -> None:
    cast(Any, context).trouble = {"b": [UncertainError("lost")]}
    engine.create(GRAPH, context, quiet)
    assert _log(context).count("create b") == 1


REFUSED = ApiError("400: none of the words that were seen elsewhere", status=400)


@dataclass(frozen=True)
class Refused(Thing):
    """Its vendor refuses its first requests to create it, and creates nothing."""

    def create(self, context: DeployContext) -> None:
        _stumble(context, self.key)
        super().create(context)


def test_refusal_after_a_new_dependency_is_tried_again_in_any_words(context: DeployContext) -> None:
    graph = [Thing("a", "A"), Thing("b", "B", ("a",)), Refused("c", "C", ("b",))]
    engine.create(graph[1:2], context, quiet)
    cast(Any, context).fresh = set()
    cast(Any, context).trouble = {"c": [REFUSED] * len(engine.PAUSES)}
    reported: list[str] = []
    engine.create(graph, context, lambda _, what: reported.append(what))
    assert _log(context) == ["create b", "create a", "create c"]
    assert sum("refused: 400: none of the words" in what for what in reported) == len(engine.PAUSES)


def test_refusal_without_a_new_dependency_is_final(context: DeployContext) -> None:
    graph = [Thing("a", "A"), Refused("b", "B", ("a",)), Thing("d", "D")]
    engine.create(graph[:1], context, quiet)
    cast(Any, context).fresh = set()  # as another process finds it
    cast(Any, context).trouble = {"b": [REFUSED]}
    with pytest.raises(engine.DeployError, match="none of the words"):
        engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a", "d"}


def test_refusal_that_stays_is_reported_in_full(context: DeployContext) -> None:
    graph = [Thing("a", "A"), Refused("b", "B", ("a",))]
    cast(Any, context).trouble = {"b": [REFUSED] * 20}
    with pytest.raises(engine.DeployError, match="none of the words that were seen elsewhere"):
        engine.create(graph, context, quiet)
    assert len(cast(Any, context).trouble["b"]) == 20 - len(engine.PAUSES) - 1


def expired_session() -> ClientError:
    error = {"Code": "ExpiredTokenException", "Message": "The security token … is expired"}
    return ClientError({"Error": cast(Any, error)}, "DescribeSecret")


@pytest.mark.parametrize(("actions", "hint"), [("", "aws sso login"), ("true", "the job again")])
def test_expired_session_is_one_error_and_the_next_run_completes(
    context: DeployContext, monkeypatch: pytest.MonkeyPatch, actions: str, hint: str
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", actions)
    graph = [Thing("a", "A"), Refused("b", "B", ("a",)), Refused("d", "D")]
    lost = LockLostError("the deploy lock could not be renewed in time")
    cast(Any, context).trouble = {"b": [expired_session()], "d": [lost]}
    with pytest.raises(engine.DeployError, match="the session with AWS expired; 2 res") as caught:
        engine.create(graph, context, quiet)
    assert hint in str(caught.value.hint)
    assert "lock" not in str(caught.value)
    engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a", "b", "d"}


def test_what_was_made_in_part_is_completed(context: DeployContext) -> None:
    graph: list[Thing] = [TwoParts("a", "A")]
    cast(Any, context).trouble = {"a": [UncertainError("lost")]}
    engine.create(graph, context, quiet)
    assert set(actions(context, graph).values()) == {"keep"}


def test_drift_is_a_change_with_its_fields(context: DeployContext) -> None:
    engine.create(GRAPH, context, quiet)
    _there(context)["b"]["size"] = 7
    steps = {step.resource.key: step for step in engine.plan(GRAPH, context)}
    assert steps["b"].changes == {"size": (7, 1)}
    assert steps["b"].lines() == ["size: 7 → 1"]
    engine.create(GRAPH, context, quiet)
    assert set(actions(context).values()) == {"keep"}
    assert _log(context)[-1] == "update b"


def test_what_cannot_be_changed_is_replaced(context: DeployContext) -> None:
    engine.create(GRAPH, context, quiet)
    _there(context)["c"]["color"] = "red"
    assert actions(context)["c"] == "replace"
    engine.create(GRAPH, context, quiet)
    assert _log(context)[-2:] == ["delete c", "create c"]


def test_what_holds_data_is_never_replaced(context: DeployContext) -> None:
    graph = [Precious("a", "A")]
    engine.create(graph, context, quiet)
    _there(context)["a"]["color"] = "red"
    with pytest.raises(engine.DeployError, match="color"):
        engine.create(graph, context, quiet)
    assert "a" in _there(context)
    assert issubclass(CannotChangeError, Exception)


def test_a_failure_stops_only_what_needs_it(context: DeployContext) -> None:
    graph = [*GRAPH, Thing("d", "D")]
    cast(Any, context).trouble = {"b": [ValueError("no")]}
    with pytest.raises(engine.DeployError, match="thing B: ValueError: no"):
        engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a", "b", "d"}


def test_delete_goes_backwards(context: DeployContext) -> None:
    engine.create(GRAPH, context, quiet)
    assert engine.delete(engine.existing(GRAPH, context, quiet), context, quiet) == {}
    assert _log(context)[-3:] == ["delete c", "delete b", "delete a"]


def test_delete_goes_on_and_keeps_what_the_rest_needs(context: DeployContext) -> None:
    graph = [*GRAPH, Thing("d", "D")]
    engine.create(graph, context, quiet)
    cast(Any, context).trouble = {"b": [ConflictError("in use")] * 30}
    left = engine.delete(engine.existing(graph, context, quiet), context, quiet)
    assert set(left) == {"thing A", "thing B"}
    assert "in use" in left["thing B"]
    assert set(_there(context)) == {"a", "b"}
    cast(Any, context).trouble = {}
    assert engine.delete(engine.existing(graph, context, quiet), context, quiet) == {}


def test_a_delete_waits_for_what_used_it_to_be_gone_everywhere(context: DeployContext) -> None:
    engine.create(GRAPH, context, quiet)
    cast(Any, context).trouble = {"b": [ConflictError("in use")] * 20}
    assert engine.delete(engine.existing(GRAPH, context, quiet), context, quiet) == {}


@pytest.mark.parametrize(("status", "left"), [(403, {"thing B", "thing A"}), (404, set())])
def test_only_a_404_says_that_it_is_gone(
    context: DeployContext, status: int, left: set[str]
) -> None:
    engine.create(GRAPH, context, quiet)
    cast(Any, context).trouble = {"b": [GoneError("no", status=status)] * 8}
    if status == 404:
        cast(Any, context).vanishes = {"b"}
    assert set(engine.delete(engine.existing(GRAPH, context, quiet), context, quiet)) == left


class KeyOfThings(Thing):
    """What locked things are read with."""

    def find(self, context: DeployContext) -> Live | None:
        live = Thing.find(self, context)
        return None if live is None else replace(live, facts={"key": "secret"})


class Locked(Thing):
    """Can be read with the key ``key`` only."""

    def find(self, context: DeployContext) -> Live | None:
        context.need("key")
        return Thing.find(self, context)


class Borrowed(Locked):
    """Goes with another resource."""

    def is_ours(self, context: DeployContext) -> bool:
        return False


def test_delete_takes_the_key_that_it_created_to_see_the_rest(context: DeployContext) -> None:
    """E.g. after a delete that was killed when it had deleted the key."""
    graph = [KeyOfThings("key", "K"), Locked("a", "A", ("key",))]
    engine.create(graph, context, quiet)
    del _there(context)["key"]
    assert engine.delete(engine.existing(graph, context, quiet), context, quiet) == {}
    assert _there(context) == {}


def test_delete_needs_no_key_to_see_what_it_leaves(context: DeployContext) -> None:
    graph = [KeyOfThings("key", "K"), Borrowed("a", "A", ("key",))]
    _there(context)["a"] = {}
    assert engine.existing(graph, context, quiet) == []
    assert _log(context) == []


@dataclass(frozen=True)
class Inside(Thing):
    """Goes with what it is within."""

    @property
    def parents(self) -> tuple[str, ...]:
        return self.within


def deleted(context: DeployContext, graph: Sequence[Thing] = GRAPH, *claimed: str) -> set[str]:
    """Delete as another process does; return what is left."""
    cast(Any, context).forget()
    context.claimed = frozenset(claimed)
    assert engine.delete(engine.existing(graph, context, quiet), context, quiet) == {}
    return set(_there(context))


@pytest.mark.parametrize("existing", [set(), {"a"}, {"b"}, {"c"}, {"a", "b"}, {"a", "b", "c"}])
def test_delete_leaves_what_existed_before(context: DeployContext, existing: set[str]) -> None:
    graph = [Thing("c", "C", ("b",)), Thing("a", "A"), Thing("b", "B", ("a",))]
    for key in existing:
        _there(context)[key] = {"size": 7, "color": "blue"}
    engine.create(graph, context, quiet)
    cast(Any, context).forget()
    engine.create(graph, context, quiet)
    assert deleted(context, graph) == existing
    assert set(context.kept) == existing
    assert cast(Any, context).pages == {}
    assert deleted(context, graph, *existing) == set()


def test_delete_without_the_record_deletes_nothing(context: DeployContext) -> None:
    engine.create(GRAPH, context, quiet)
    cast(Any, context).pages.clear()
    assert deleted(context) == {"a", "b", "c"}
    assert deleted(context, GRAPH, "b", "c") == {"a"}


def test_delete_takes_what_goes_with_something_that_was_created(context: DeployContext) -> None:
    graph = [Thing("a", "A"), Inside("b", "B", ("a",), ("a",)), Inside("c", "C", ("b",), ("b",))]
    engine.create(graph[:1], context, quiet)
    _there(context)["b"] = {"size": 1, "color": "blue"}
    engine.create(graph, context, quiet)
    assert [*json.loads(cast(Any, context).pages[0])] == ["a"]
    assert deleted(context, graph) == set()


def test_delete_leaves_what_another_one_created_again(context: DeployContext) -> None:
    """Its id is another one, or that of what it is inside."""
    graph = [Moved("a", "A"), Inside("b", "B", ("a",), ("a",))]
    engine.create(graph, context, quiet)
    _there(context)["a"]["id"] = "other"
    assert deleted(context, graph) == {"a", "b"}


@dataclass(frozen=True)
class Hidden(Thing):
    """Only some administrators see it."""

    def find(self, context: DeployContext) -> Live | None:
        return super().find(context) if cast(Any, context).is_visible else None


def test_delete_that_is_not_confirmed_forgets_nothing(context: DeployContext) -> None:
    graph = [Hidden("a", "A"), Thing("b", "B")]
    cast(Any, context).is_visible = True
    engine.create(graph, context, quiet)
    cast(Any, context).forget()
    cast(Any, context).is_visible = False
    found = engine.existing(graph, context, quiet)
    assert [resource.key for resource, _ in found] == ["b"]
    assert context.unseen == {"a": "thing A"}
    cast(Any, context).is_visible = True
    assert deleted(context, graph) == set()


def test_delete_that_is_confirmed_forgets_what_it_does_not_see(context: DeployContext) -> None:
    graph = [Hidden("a", "A"), Thing("b", "B")]
    cast(Any, context).is_visible = True
    engine.create(graph, context, quiet)
    cast(Any, context).is_visible = False
    assert deleted(context, graph) == {"a"}
    cast(Any, context).is_visible = True
    assert deleted(context, graph) == {"a"}, "another administrator may have created it again"


def test_what_another_one_creates_after_a_refusal_is_left(context: DeployContext) -> None:
    graph: list[Thing] = [Refused("a", "A")]
    cast(Any, context).trouble = {"a": [REFUSED]}
    with pytest.raises(engine.DeployError):
        engine.create(graph, context, quiet)
    _there(context)["a"] = {"size": 1, "color": "blue"}
    engine.create(graph, context, quiet)
    assert deleted(context, graph) == {"a"}


@dataclass(frozen=True)
class Taken(Thing):
    """Its vendor refuses to create what exists; ``trouble`` comes before that."""

    def create(self, context: DeployContext) -> None:
        _stumble(context, self.key)
        if self.key in _there(context):
            raise ConflictError("it exists", status=409)
        super().create(context)


class Raced(Taken):
    """Between the look and the request, another administrator creates it."""

    def create(self, context: DeployContext) -> None:
        _there(context).setdefault(self.key, {"size": 7, "color": "blue"})
        super().create(context)


@pytest.mark.parametrize(
    "lost",
    [
        UncertainError("lost"),
        GoneError("not known everywhere yet", status=404),
        ClientError(
            {
                "Error": {"Code": "EntityAlreadyExists"},
                "ResponseMetadata": cast(Any, {"RetryAttempts": 1}),
            },
            "CreateRole",
        ),
    ],
)
def test_what_an_unclear_request_created_is_deleted(
    context: DeployContext, lost: Exception
) -> None:
    cast(Any, context).trouble = {"a": [lost]}
    graph = [Raced("a", "A")]
    engine.create(graph, context, quiet)
    assert deleted(context, graph) == set()


@pytest.mark.parametrize("retries", [0, 1])
def test_deletion_that_the_sdk_repeated_is_looked_at(context: DeployContext, retries: int) -> None:
    """EMR Serverless refuses to delete what is terminated: ``ValidationException``."""
    refused = ClientError(
        {
            "Error": {"Code": "ValidationException"},
            "ResponseMetadata": cast(Any, {"RetryAttempts": retries, "HTTPStatusCode": 400}),
        },
        "DeleteApplication",
    )

    class Terminated(Thing):
        def delete(self, context: DeployContext, live: Live) -> None:
            super().delete(context, live)
            raise refused

    graph = [Terminated("a", "A")]
    engine.create(graph, context, quiet)
    left = engine.delete(engine.existing(graph, context, quiet), context, quiet)
    assert list(left) == (["thing A"] if retries == 0 else [])


class HiddenAndTaken(Taken, Hidden):
    """Its vendor refuses to create what exists, also from who does not see it."""


@pytest.mark.parametrize("before", [None, ""])
def test_what_the_login_does_not_see_is_no_creation(
    context: DeployContext, before: str | None
) -> None:
    _there(context)["a"] = {"size": 1, "color": "blue"}
    if before is not None:  # a run that was killed left it
        context.record.put("a", before)
    cast(Any, context).is_visible = False
    graph = [HiddenAndTaken("a", "A")]
    with pytest.raises(engine.DeployError, match="thing A exists, and this login does not see it"):
        engine.create(graph, context, quiet)
    assert cast(Any, context).pages == {}
    cast(Any, context).is_visible = True
    engine.create(graph, context, quiet)
    assert deleted(context, graph) == {"a"}


def test_what_the_login_does_not_see_stays_recorded(context: DeployContext) -> None:
    graph = [HiddenAndTaken("a", "A")]
    cast(Any, context).is_visible = True
    engine.create(graph, context, quiet)
    cast(Any, context).is_visible = False
    with pytest.raises(engine.DeployError, match="does not see it"):
        engine.create(graph, context, quiet)
    cast(Any, context).is_visible = True
    assert deleted(context, graph) == set()


class LostAndHidden(HiddenAndTaken):
    """A request creates it, its response is lost, and nobody sees it for minutes."""

    def create(self, context: DeployContext) -> None:
        if self.key not in _there(context):
            Thing.create(self, context)
            raise UncertainError("lost")
        super().create(context)


def test_what_appears_late_after_an_unclear_request_is_ours(context: DeployContext) -> None:
    cast(Any, context).is_visible = False
    graph = [LostAndHidden("a", "A")]
    with pytest.raises(engine.DeployError, match="does not see it"):
        engine.create(graph, context, quiet)
    cast(Any, context).is_visible = True
    assert deleted(context, graph) == set()


@pytest.mark.parametrize("kind", [Thing, TwoParts])
def test_what_a_killed_process_created_is_deleted(
    context: DeployContext, kind: type[Thing]
) -> None:
    graph = [kind("a", "A")]
    cast(Any, context).trouble = {"a": [cast(Any, KeyboardInterrupt())]}
    with pytest.raises(KeyboardInterrupt):
        engine.create(graph, context, quiet)
    assert deleted(context, graph) == set()


def test_what_a_spec_turns_off_is_left_if_it_existed_before(context: DeployContext) -> None:
    graph = [Thing("a", "A", wanted=False), Thing("b", "B", wanted=False)]
    engine.create([Thing("b", "B")], context, quiet)
    _there(context)["a"] = {"size": 1}
    cast(Any, context).forget()
    assert actions(context, graph) == {"a": "keep", "b": "delete"}
    engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a"}


def test_what_holds_data_and_is_turned_off_waits_for_a_request(context: DeployContext) -> None:
    engine.create([Precious("a", "A")], context, quiet)
    graph = [Precious("a", "A", wanted=False)]
    (step,) = engine.plan(graph, context)
    assert (step.action, "--irrevocable" in step.reason) == ("keep", True)
    engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a"}
    context.irrevocable = True
    engine.create(graph, context, quiet)
    assert not _there(context)


def test_what_is_left_with_its_data_keeps_what_it_needs(context: DeployContext) -> None:
    graph = [Thing("a", "A"), Precious("b", "B", needs=("a",))]
    engine.create(graph, context, quiet)
    graph = [replace(resource, wanted=False) for resource in graph]
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a", "b"}
    context.irrevocable = True
    engine.create(graph, context, quiet)
    assert not _there(context)


def test_what_is_replaced_is_created_and_so_deleted(context: DeployContext) -> None:
    _there(context)["a"] = {"size": 1, "color": "red"}
    engine.create([Thing("a", "A")], context, quiet)
    assert deleted(context, [Thing("a", "A")]) == set()


entries = st.dictionaries(st.text("abcé/", max_size=9), st.text(max_size=300), max_size=80)


@given(entries, st.data())
def test_record_has_what_was_put_and_not_dropped(entries: dict[str, str], data: Any) -> None:
    pages: dict[int, str] = {}
    with ThreadPoolExecutor(4) as pool:
        record = CreationRecord(InMemory(pages))
        list(pool.map(record.put, entries, entries.values()))
        dropped = data.draw(st.sets(st.sampled_from([*entries]))) if entries else set()
        list(pool.map(record.drop, dropped))
    read = CreationRecord(InMemory(pages))
    for key, identity in entries.items():
        assert read.get(key) == (None if key in dropped else identity)
    assert all(len(text) <= 8192 for text in pages.values())
    assert len(pages) <= 1 + 2 * sum(map(len, pages.values())) // PAGE_CHARACTERS or dropped


def test_record_that_somebody_broke_is_reported() -> None:
    with pytest.raises(TopicbergError, match=r"page 3 of the record .* is not a JSON object: 'x'"):
        CreationRecord(InMemory({3: "x"})).get("a")


@dataclass(frozen=True)
class Late(Thing):
    """Cannot be created before another party has done something."""

    def waits(self, context: DeployContext) -> str:
        return "" if "event" in _there(context) else "for the event"


def test_what_waits_stops_nothing_and_is_no_failure(context: DeployContext) -> None:
    graph: list[Thing] = [
        Late("b", "B", ("a",)),
        Thing("c", "C", ("b",), ("b",)),
        Thing("a", "A"),
        Thing("d", "D", ("b",)),
    ]
    assert actions(context, graph) == {"a": "create", "b": "wait", "c": "wait", "d": "create"}
    engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a", "d"}
    assert cast(Any, context).waiting == dict.fromkeys("bc", "for the event")
    assert actions(context, graph) == {"a": "keep", "b": "wait", "c": "wait", "d": "keep"}
    _there(context)["event"] = {}
    engine.create(graph, context, quiet)
    assert set(actions(context, graph).values()) == {"keep"}
    assert cast(Any, context).waiting == {}


@dataclass(frozen=True)
class Twin(Thing):
    """Two of one name are possible, and lists lag: it is seen at the fifth look."""

    unique = False

    def find(self, context: DeployContext) -> Live | None:
        looks, made = cast(Any, context).looks, _log(context).count(f"create {self.key}")
        looks[self.key] = looks.get(self.key, 0) + bool(made)
        return super().find(context) if looks[self.key] > 4 else None


def test_an_unanswered_request_makes_no_twin(context: DeployContext) -> None:
    """A Kafka cluster, say: its second one would run, and cost, unseen."""
    cast(Any, context).looks = {}
    cast(Any, context).trouble = {"a": [UncertainError("lost")]}
    engine.create([Twin("a", "A")], context, quiet)
    assert _log(context) == ["create a"]
    assert not next(one for one in resources(CONFIG, []) if one.key == CLUSTER).unique


def test_what_is_not_wanted_any_more_is_deleted_first(context: DeployContext) -> None:
    engine.create(GRAPH, context, quiet)
    graph = [replace(GRAPH[0], wanted=False), *GRAPH[1:]]
    assert actions(context, graph) == {"a": "keep", "b": "keep", "c": "delete"}
    engine.create(graph, context, quiet)
    assert set(_there(context)) == {"a", "b"}
    assert set(actions(context, graph).values()) == {"keep"}


def test_tableflow_that_is_turned_off_is_deleted_with_its_table() -> None:
    (spec,) = [spec for spec in load_topics() if spec.name == "stock_trades"]
    document = spec.model_dump(by_alias=True)
    before = {one.key for one in resources(CONFIG, [spec]) if not one.wanted}
    document["tableflow"]["enabled"] = False
    graph = resources(CONFIG, [TopicSpec.model_validate(document)])
    assert {one.key for one in graph if not one.wanted} - before == {
        "confluent/tableflow/stock_trades",
        "snowflake/table/stock_trades",
        "snowflake/grant/reader/table/stock_trades",
        "snowflake/grant/query/table/stock_trades",
    }


# --- the real graph ---


@pytest.mark.parametrize(
    ("catalog", "integration"),
    [
        ("glue", "snowflake/integration"),
        ("glue_rest", "snowflake/integration"),
        ("open_catalog", "snowflake/rest_integration"),
        ("iceberg_rest", "snowflake/rest_integration"),
    ],
)
def test_tables_come_after_the_integration_that_finds_them(catalog: str, integration: str) -> None:
    config = Settings.model_validate({"prefix": "demo", "snowflake_catalog": catalog})
    graph = {one.key: one for one in resources(config, load_topics())}
    assert graph[integration].wanted
    assert integration in graph["snowflake/table/stock_trades"].needs
    assert graph["snowflake/rest_integration"].wanted == ("rest_" in integration)
    assert not graph["snowflake/linked_database"].wanted


@pytest.mark.parametrize("catalog", ["glue", "glue_rest", "open_catalog", "iceberg_rest"])
def test_linked_tables_leave_created_ones_in_place(catalog: str) -> None:
    """What tables that were created one by one use is kept: nothing of it is unwanted."""
    settings = {"prefix": "demo", "snowflake_catalog": catalog}
    created, linked = (
        {
            one.key: one
            for one in resources(
                Settings.model_validate(settings | {"snowflake_linked_database": is_linked}),
                load_topics(),
            )
        }
        for is_linked in (False, True)
    )
    assert not {key for key, one in created.items() if one.wanted and not linked[key].wanted}
    assert linked["snowflake/linked_database"].wanted
    assert isinstance(linked["snowflake/table/stock_trades"], LinkedTable)
    assert linked["snowflake/linked_integration"].wanted
    assert linked["snowflake/linked_database"].needs[0] == "snowflake/linked_integration"


def test_every_need_is_there_and_comes_first() -> None:
    graph = resources(CONFIG, load_topics())
    keys = [resource.key for resource in graph]
    assert len(keys) == len(set(keys))
    place = {resource.key: n for n, resource in enumerate(engine.in_order(graph))}
    for resource in graph:
        for need in (*resource.needs, *resource.within):
            assert place[need] < place[resource.key]


def test_a_table_waits_for_all_that_it_is_made_from() -> None:
    graph = {one.key: one for one in resources(CONFIG, load_topics())}
    waited: set[str] = set()
    following = ["snowflake/table/stock_trades"]
    while following:
        needs = set(graph[following.pop()].needs) - waited
        waited |= needs
        following += needs
    assert waited >= {
        *("snowflake/database", "snowflake/schema", "snowflake/volume", "snowflake/integration"),
        *("snowflake/grant/sysadmin/volume", "snowflake/grant/sysadmin/integration"),
        *("confluent/tableflow/stock_trades", "confluent/catalog_integration"),
        *("aws/role/snowflake", "aws/role/tableflow", "aws/glue_database"),
    }


def test_the_user_may_read_what_it_is_made_for() -> None:
    graph, role = resources(CONFIG, load_topics()), CONFIG.snowflake_name("system_admin_role")
    may = {(one.privilege, one.on) for one in graph if isinstance(one, Grant) and one.role == role}
    assert may >= {("USAGE", on) for on in ("WAREHOUSE", "DATABASE", "SCHEMA")}
    grants = [one for one in graph if type(one) is Grant]
    read = {one.target for one in grants if one.privilege == "SELECT"}
    tables = {one.name for one in graph if isinstance(one, IcebergTable)}
    assert {target[-1] for target in read} == tables != set()


def test_roles_are_on_what_is_ours_and_no_wider() -> None:
    bindings = [one for one in resources(CONFIG, load_topics()) if isinstance(one, RoleBinding)]
    assert {one.on for one in bindings} == {CLUSTER, REGISTRY, PROVIDER_INTEGRATION}
    assert not any("Environment" in one.role or "Organization" in one.role for one in bindings)
    (admin,) = [one for one in bindings if one.role == "CloudClusterAdmin"]
    assert admin.account == "confluent/service_account/app_manager"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("snowflake/table/stock_trades", "snowflake/integration"),
        ("snowflake/table/stock_trades", "snowflake/volume"),
        ("confluent/tableflow/stock_trades", "confluent/catalog_integration"),
        ("confluent/unity_integration", "key/tableflow"),
        ("confluent/tableflow/stock_trades", "confluent/connector/stock_trades"),
        ("confluent/connector/stock_trades", "confluent/topic/stock_trades"),
        ("confluent/catalog_integration", "confluent/provider_integration"),
        ("confluent/catalog_integration", "aws/glue_database"),
        ("confluent/tableflow/stock_trades", "aws/bucket"),
        ("confluent/topic/stock_trades", "key/kafka_app_manager"),
        ("confluent/tableflow/stock_trades", "key/tableflow"),
        # With the tables that the service user made, which use the rest.
        ("snowflake/database", "snowflake/volume"),
        ("snowflake/database", "snowflake/derived_volume"),
        ("snowflake/database", "snowflake/integration"),
        ("snowflake/database", "snowflake/role_grant/to_sysadmin"),
        ("snowflake/database", "snowflake/role/system_admin"),
        ("snowflake/derived_volume", "aws/derived_bucket"),
    ],
)
def test_order_of_deletion(first: str, then: str) -> None:
    order = [one.key for one in reversed(engine.in_order(resources(CONFIG, load_topics())))]
    assert order.index(first) < order.index(then)


def test_names_with_another_prefix_share_nothing() -> None:
    def all_names(prefix: str) -> set[str]:
        config = Settings(prefix=prefix)
        kinds = {"environment", "service account", "IAM role", "IAM policy", "API key"}
        kinds |= {"external volume", "Snowflake user", "Snowflake warehouse", "RSA key pairs"}
        graph = resources(config, load_topics())
        derived = {one.name for one in graph if one.key.startswith("aws/pipeline_database/")}
        assert derived
        return derived | {one.name for one in graph if one.kind in kinds}

    assert all_names("demo").isdisjoint(all_names("tableflow_kickstarter"))
    assert all("demo" in name.lower() for name in all_names("demo"))


def test_schemas_go_to_the_subjects_that_the_spec_names() -> None:
    document = load_topic("stock_trades").model_dump(by_alias=True)
    document["schema"]["subject"] = "trades-of-all"
    document["tableflow"]["enabled"] = True
    graph = resources(CONFIG, [TopicSpec.model_validate(document)])
    subjects = [one.name for one in graph if one.key.startswith("confluent/subject/")]
    assert subjects == ["trades-of-all"]


@dataclass(frozen=True)
class Slow(Thing):
    usual_minutes = 5

    def settle(self, context: DeployContext, live: Live) -> None:
        assert cast(Any, context).is_reported.wait(120)


def test_long_step_tells_how_long_it_takes(
    context: DeployContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "SILENT_SECONDS", 0.05)
    reported: list[tuple[str, str]] = []
    cast(Any, context).is_reported = is_reported = threading.Event()

    def report(resource: Resource, what: str) -> None:
        reported.append((resource.key, what))
        if "not ready yet, usually about 5 min" in what and resource.key == "slow":
            is_reported.set()

    engine.create([Slow("slow", "slow"), Thing("fast", "fast")], context, report)
    assert ("slow", "creating, about 5 min") in reported
    assert [what for key, what in reported if key == "fast"] == ["creating", "created"]
    ended = len(reported)
    time.sleep(0.1)
    assert len(reported) == ended


@dataclass(frozen=True)
class Vanishing(Thing):
    """Whoever changes it deletes it."""

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        del _there(context)[self.key]


def test_resource_that_is_deleted_while_it_is_changed_is_missing(context: DeployContext) -> None:
    _there(context)["a"] = {"size": 2, "color": "blue"}
    with pytest.raises(engine.DeployError, match="existed and is now missing"):
        engine.create([Vanishing("a", "a")], context, lambda *_: None)


@dataclass(frozen=True)
class Looked(Thing):
    def find(self, context: DeployContext) -> Live | None:
        _log(context).append(f"find {self.key}")
        return super().find(context)


@dataclass(frozen=True)
class Settling(Looked):
    def settle(self, context: DeployContext, live: Live) -> None:
        _there(context)[self.key]["state"] = "ready"


def test_what_settles_is_looked_at_again_and_nothing_else(context: DeployContext) -> None:
    for key in ("plain", "slow"):
        _there(context)[key] = {"size": 1, "color": "blue"}
    engine.create([Looked("plain", "p"), Settling("slow", "s")], context, lambda *_: None)
    assert sorted(_log(context)) == ["find plain", "find slow", "find slow"]
    assert context.live["slow"].fields["state"] == "ready"
