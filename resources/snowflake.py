"""Snowflake of the chosen deployment, through dagster-snowflake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource, InitResourceContext
from pydantic import PrivateAttr

from resources.lakehouse import connect
from topicberg.catalogs.snowflake import logging_in
from topicberg.dagster.snowflake import snowflake_resource

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

TIMEOUT_SECONDS = 60


class _Held:
    """An open connection."""

    def __init__(self, opened: AbstractContextManager[SnowflakeConnection]) -> None:
        self._stack = ExitStack()
        self.connection = self._stack.enter_context(opened)

    def close(self) -> None:
        self._stack.close()


class _Kept:
    """The connections of a run that nothing uses at the moment."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[_Held] = []

    def take(self) -> _Held | None:
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, held: _Held) -> None:
        with self._lock:
            self._free.append(held)

    def close(self) -> None:
        while (held := self.take()) is not None:
            held.close()


class Snowflake(ConfigurableResource):
    """Connections by ``dagster_snowflake.SnowflakeResource`` to the deployment's address.

    The steps of a run share them, as a log-in costs more than the statements for a table.
    """

    _kept: _Kept | None = PrivateAttr(None)
    """None outside of a run."""

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
        if kept is None:
            with self._opened() as connection:
                yield connection
            return
        held = kept.take() or _Held(self._opened())
        try:
            yield held.connection
        except BaseException:
            held.close()
            raise
        kept.give_back(held)

    @contextmanager
    def _opened(self) -> Iterator[SnowflakeConnection]:
        endpoint = connect().snowflake
        address = {
            key: value
            for key, value in (
                ("host", endpoint.host),
                ("port", endpoint.port),
                ("protocol", endpoint.protocol),
            )
            if value is not None
        }
        arguments: dict[str, Any] = {**address, "login_timeout": TIMEOUT_SECONDS}
        resource = snowflake_resource()(
            account=endpoint.account,
            user=endpoint.user,
            **endpoint.login(),
            additional_snowflake_connection_args=arguments,
        )
        with ExitStack() as opened:
            with logging_in():
                connection = opened.enter_context(resource.get_connection())
            yield connection
