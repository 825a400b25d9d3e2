"""A derived table is dropped everywhere, and only a derived one is."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.admin import NewTopic
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from typer.testing import CliRunner, Result

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.session import records
from topicberg.catalogs.snowflake.tables import sync
from topicberg.checks.check import CheckedTable
from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.iceberg.tables import find_table
from topicberg.kafka import topics as kafka
from topicberg.orchestration.resources import Lakehouse, Snowflake
from topicberg.settings import settings
from topicberg.topics import load_topic
from topicberg.transforms.target import COMPUTED

pytestmark = [pytest.mark.integration]


def drop(table: str, *options: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["pipelines", "drop", table, *options], input=answer)


def test_drop_of_a_computed_table_removes_it_from_every_catalog(stack: Endpoints) -> None:
    catalog, name = stack.catalog(settings()), f"t{uuid.uuid4().hex[:8]}"
    namespace = load_topic("stock_trades").namespace()
    catalog.create_namespace_if_not_exists(namespace)
    schema, identifier = Schema(NestedField(1, "id", LongType())), (namespace, name)
    catalog.create_table(identifier, schema)
    assert "no derived table" in str(drop(name, "--yes").exception)
    assert find_table(catalog, identifier), "someone else's"
    catalog.drop_table(identifier)

    table = catalog.create_table(identifier, schema, properties={COMPUTED: "true"})
    table.append(schema.as_arrow().empty_table())
    checked, client = CheckedTable(name, identifier), Lakehouse().glue()
    where = checked.snowflake_name, checked.snowflake_source
    glue.register(client, table, *checked.glue_table)
    show = f"SHOW ICEBERG TABLES LIKE '{name.upper()}' IN ACCOUNT"
    with Snowflake().connection() as connection:
        sync(connection, settings(), *where, table.location())
        assert records(connection, show)
        assert drop(name, answer="n\n").exit_code == 1
        assert find_table(catalog, identifier)
        for expected in (0, 1):  # a second time there is nothing
            assert drop(name, "--yes").exit_code == expected
        assert not records(connection, show)
    assert find_table(catalog, identifier) is None
    assert glue.get_table(client, *checked.glue_table) is None


def test_topic_is_deleted_once(stack: Endpoints) -> None:
    topic = f"t{uuid.uuid4().hex[:8]}"
    kafka.admin_client(stack, writes=True).create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    assert kafka.delete_topic(stack, topic)
    assert not kafka.delete_topic(stack, topic)
