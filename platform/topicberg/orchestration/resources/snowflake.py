"""Snowflake of the chosen deployment, through dagster-snowflake."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from dagster import ConfigurableResource, InitResourceContext
from pydantic import PrivateAttr

from topicberg.catalogs.snowflake.session import TIMEOUTS, logging_in
from topicberg.dagster.snowflake import snowflake_resource
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.orchestration.resources.lakehouse import connect

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

IDLE_SECONDS = 600  # A connection that is idle for longer is not used: its session may have ended.


class _Held(ExitStack):
    """An open connection."""

    def __init__(self, opened: AbstractContextManager[SnowflakeConnection]) -> None:
        super().__init__()
        self.used_at = time.monotonic()
        with logging_in():
            self.connection = self.enter_context(opened)


class _Kept:
    """The connections that nothing uses at the moment, the last used one at the end."""

    def __init__(self) -> None:
        self._free: list[_Held] = []  # Threads share it: append and pop are atomic.

    def take(self) -> _Held | None:
        while pooled := self._last():
            if time.monotonic() - pooled.used_at < IDLE_SECONDS:
                return pooled
            pooled.close()
        return None

    def give_back(self, pooled: _Held) -> None:
        pooled.used_at = time.monotonic()
        self._free.append(pooled)

    def close(self) -> None:
        while pooled := self._last():
            pooled.close()

    def _last(self) -> _Held | None:
        with suppress(IndexError):  # there is none
            return self._free.pop()
        return None


class Snowflake(ConfigurableResource):
    """Connections by ``dagster_snowflake.SnowflakeResource`` to the deployment's address.

    The steps of a run share them, as a log-in costs more than the statements for a table.
    """

    _kept: _Kept | None = PrivateAttr(None)  # None: each use opens one, as outside of a run.

    def setup_for_execution(self, context: InitResourceContext) -> None:
        self._kept = _Kept()

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = None

    @contextmanager
    def connection(self) -> Iterator[SnowflakeConnection]:
        """Yield a connection that no other thread uses; one that failed is not used again."""
        kept = self._kept
        pooled = (kept and kept.take()) or _Held(self._opened())
        try:
            yield pooled.connection
        except BaseException:
            pooled.close()
            raise
        if kept is None:
            pooled.close()
        else:
            kept.give_back(pooled)

    def _opened(self) -> AbstractContextManager[SnowflakeConnection]:
        endpoint = self._endpoints().snowflake
        address = {name: getattr(endpoint, name) for name in ("host", "port", "protocol")}
        given = {name: value for name, value in address.items() if value is not None}
        return snowflake_resource()(
            account=endpoint.account,
            user=endpoint.user,
            **endpoint.login(),
            additional_snowflake_connection_args={**TIMEOUTS, **given},
        ).get_connection()

    def _endpoints(self) -> Endpoints:
        return connect()


class _Lasting(Snowflake):
    _kept: _Kept | None = PrivateAttr(default_factory=_Kept)

    def _endpoints(self) -> Endpoints:
        return load_endpoints()


@cache
def lasting() -> Snowflake:
    """Return connections that outlast a run, for the ticks of a sensor; they start nothing."""
    return _Lasting()
