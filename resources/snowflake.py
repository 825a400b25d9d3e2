"""Snowflake of the chosen deployment, through dagster-snowflake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource

from resources.lakehouse import connect
from topicberg.catalogs.snowflake import logging_in
from topicberg.dagster.snowflake import snowflake_resource

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

TIMEOUT_SECONDS = 60


class Snowflake(ConfigurableResource):
    """Connections by ``dagster_snowflake.SnowflakeResource`` to the deployment's address."""

    @contextmanager
    def connection(self) -> Iterator[SnowflakeConnection]:
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
