"""What a resource of the platform is, and how what is wanted is compared with what is there.

There is no state file. A resource is found by its natural key, so that whatever exists under its
name is adopted, and a second run sees exactly what the first one created. What was created, and so
may be deleted, is recorded: :mod:`topicberg_deploy.record`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.context import DeployContext as DeployContext
from topicberg_deploy.context import Fields as Fields
from topicberg_deploy.context import Live as Live
from topicberg_deploy.context import MissingError as MissingError
from topicberg_deploy.costs import Cost, Quota


class Action(StrEnum):
    """What ``create`` would do with a resource."""

    KEEP = "keep"
    CREATE = "create"
    CHANGE = "change"
    REPLACE = "replace"
    DELETE = "delete"
    LOOK = "look again"
    """It cannot be read before something else is repaired, e.g. the key that can read it."""
    WAIT = "wait"
    """It cannot be created before something happens that is not ours to do; nothing is wrong."""


class WaitingError(Exception):
    """What a resource waits for before it can be created, and that is not ours to do."""


class HiddenError(TopicbergError):
    """An object of a resource's name exists, and who deploys does not see it.

    ``may_be_ours``: an earlier request may have created it.
    """

    may_be_ours = False


class CannotChangeError(TopicbergError):
    """A resource differs in a way that only recreating it would correct, which would lose data."""


@dataclass(frozen=True)
class Resource:
    """One resource. Subclasses define how it is found, created, changed and deleted.

    :param key: e.g. ``confluent/topic/stock_trades``; the asset key too
    :param name: the natural key
    :param needs: keys of the resources that come first
    :param within: those of ``needs`` without which it cannot exist
    :param wanted: False: it is to be deleted where it exists
    """

    key: str
    name: str
    needs: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    wanted: bool = True

    kind: ClassVar[str] = ""
    """What people call it, e.g. ``Kafka cluster``."""
    replaced_for: ClassVar[frozenset[str]] = frozenset()
    """Fields that cannot be changed in place."""
    holds_data: ClassVar[bool] = False
    """Deleting it deletes data: it is never replaced, and the confirmation names it."""
    built_in: ClassVar[bool] = False
    """It appears and goes with another resource; nothing makes or deletes it."""
    usual_minutes: ClassVar[float] = 0
    """By order of magnitude, how long it takes until others can use it; 0: seconds."""
    unique: ClassVar[bool] = True
    """Its vendor refuses a second one of its name."""
    quota: ClassVar[Quota | None] = None
    """The vendor's quota that it counts for."""
    is_created_whole: ClassVar[bool] = True
    """The request that creates it sets all its fields; else they are set when it is there."""
    is_part: ClassVar[bool] = False
    """It goes with what it is within, and is of who created that."""

    def find(self, context: DeployContext) -> Live | None:
        """:raises MissingError: what is needed to look is not there"""
        raise NotImplementedError

    def desired(self, context: DeployContext) -> Fields:
        """:raises MissingError: what it is created from does not exist yet"""
        return {}

    def create(self, context: DeployContext) -> None:
        raise NotImplementedError

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        """Update the fields in ``changes``."""
        raise NotImplementedError

    def delete(self, context: DeployContext, live: Live) -> None:
        """Ask for its deletion. It may take until :meth:`find` does not see it any more."""
        raise NotImplementedError

    def is_ours(self, context: DeployContext) -> bool:
        """Whether a delete takes it: not what the local stack brings along."""
        return not self.built_in

    def waits(self, context: DeployContext) -> str:
        """Return what it waits for before it can be created; empty: nothing.

        :raises MissingError: what is needed to tell is not there
        """
        return ""

    def settle(self, context: DeployContext, live: Live) -> None:
        """Wait until others can use it.

        :raises TopicbergError: it failed, or takes too long
        """

    @property
    def settles(self) -> bool:
        """Whether :meth:`settle` does anything, so that it may differ afterwards."""
        return type(self).settle is not Resource.settle

    def contents(self, context: DeployContext) -> list[str]:
        """What is deleted with it and is not a resource of its own, for the confirmation."""
        return []

    def orphans(self, context: DeployContext, live: Live) -> list[str]:
        """Ids of objects that were created for it and that nothing uses, e.g. after a kill."""
        return []

    def remark(self, context: DeployContext, live: Live) -> str:
        """Return what is unexpected of it and is left as it is; empty: nothing is."""
        return ""

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        """Return what it costs a month; None: it is free.

        :param live: as it is; None: it does not exist, or was not looked at
        """
        return None

    def quota_units(self, config: Settings) -> int:
        """Return how much of its quota it takes."""
        return 1

    @property
    def parents(self) -> tuple[str, ...]:
        """Keys of what it goes with: who created one of them has it, too."""
        return self.within if self.is_part else ()

    def lasting_id(self, live: Live) -> str:
        """Return an id that it keeps for as long as it exists."""
        return live.id

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


Changes = dict[str, tuple[Any, Any]]
"""Field → (as it is, as it should be)."""


@dataclass(frozen=True)
class Step:
    """One resource in a plan."""

    resource: Resource
    action: Action
    changes: Changes = field(default_factory=dict)
    reason: str = ""

    def lines(self) -> list[str]:
        """The differing fields, for people."""
        return [f"{name}: {shown(old)} → {shown(new)}" for name, (old, new) in self.changes.items()]


def compare(live: Mapping[str, Any], desired: Mapping[str, Any]) -> Changes:
    """Return the desired fields that differ. A live field that is not desired is not compared."""
    return {
        name: (live.get(name), wanted)
        for name, wanted in desired.items()
        if live.get(name) != wanted
    }


def shown(value: Any) -> str:
    """A value on one line."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 160 else text[:157] + "…"
