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


class Snowflake(ConfigurableResource):
    """Connections by ``dagster_snowflake.SnowflakeResource`` to the deployment's address. The steps
    of a run share them, as a log-in costs more than the statements for a table."""

    _free: list[_Held] | None = PrivateAttr(None)
    """Those that nothing uses at the moment, the last used one at the end; None: each use opens
    one, as outside of a run. Threads share it: append and pop are atomic."""

    def setup_for_execution(self, context: InitResourceContext) -> None:
        self._free = []

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        free, self._free = self._free, None
        for pooled in free or ():
            pooled.close()

    @contextmanager
    def connection(self) -> Iterator[SnowflakeConnection]:
        """Yield a connection that no other thread uses; one that failed is not used again."""
        pooled = self._pooled() or _Held(self._opened())
        try:
            yield pooled.connection
        except BaseException:
            pooled.close()
            raise
        if self._free is None:
            pooled.close()
        else:
            pooled.used_at = time.monotonic()
            self._free.append(pooled)

    def _pooled(self) -> _Held | None:
        """Return the connection that was used last, if that is not too long ago."""
        with suppress(IndexError):  # there is none
            while self._free is not None:
                pooled = self._free.pop()
                if time.monotonic() - pooled.used_at < IDLE_SECONDS:
                    return pooled
                pooled.close()
        return None

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
    _free: list[_Held] | None = PrivateAttr(default_factory=list)

    def _endpoints(self) -> Endpoints:
        return load_endpoints()


@cache
def lasting() -> Snowflake:
    """Return connections that outlast a run, for the ticks of a sensor; they start nothing."""
    return _Lasting()
