"""Faults on demand: what a client must survive, for the requests that a test names."""

from __future__ import annotations

import threading
from random import Random
from re import Pattern
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Fault(BaseModel):
    """What happens to requests, and to which.

    ``429`` comes with ``Retry-After``; ``unsynced``: the key is unknown as yet; ``slow`` answers
    after ``seconds``; ``timeout`` answers nothing for ``seconds``, then 504; ``lost``: the
    request is carried out, and its answer is a 500; ``reworded``: a refusal by 400 or 422 has other
    words, since no vendor documents its words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["429", "500", "503", "unsynced", "slow", "timeout", "lost", "reworded"]
    method: Literal["*", "GET", "POST", "PUT", "PATCH", "DELETE"] = "*"
    path: Pattern[str] = Field(default="", validate_default=True, description="searched in paths")
    times: int | None = Field(default=None, ge=1, description="the next so many requests")
    percent: float | None = Field(default=None, gt=0, le=100, description="of all requests")
    seed: int = Field(default=0, description="for percent: the same requests each time")
    seconds: float = Field(default=1.0, ge=0, description="of Retry-After, slow and timeout")

    @model_validator(mode="after")
    def _times_or_percent(self) -> Fault:
        if (self.times is None) == (self.percent is None):
            raise ValueError("either times or percent")
        return self


class _Active:
    def __init__(self, fault: Fault) -> None:
        self.fault, self.left, self.hits = fault, fault.times, 0
        self.random = Random(fault.seed)  # noqa: S311

    def strikes(self, method: str, path: str) -> bool:
        if self.fault.method not in ("*", method) or not self.fault.path.search(path):
            return False
        if self.left == 0 or (
            self.left is None and self.random.random() * 100 >= (self.fault.percent or 0)
        ):
            return False
        self.left = None if self.left is None else self.left - 1
        self.hits += 1
        return True


class Faults:
    """Those that are in force; a restart of the emulator forgets them."""

    def __init__(self) -> None:
        self._active: list[_Active] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._active.append(_Active(fault))

    def clear(self) -> None:
        with self._lock:
            self._active.clear()

    def shown(self) -> list[dict[str, object]]:
        with self._lock:
            return [
                {**active.fault.model_dump(mode="json"), "left": active.left, "hits": active.hits}
                for active in self._active
            ]

    def strike(self, method: str, path: str) -> Fault | None:
        """The first fault that this request meets."""
        with self._lock:
            faults = (active.fault for active in self._active if active.strikes(method, path))
            return next(faults, None)
