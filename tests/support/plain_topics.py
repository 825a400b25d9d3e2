"""Records of plain JSON as ``topics new --from-kafka`` reads them, and as an engine then does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import stored_values
import yaml
from plans import plan_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.types import NestedField
from specs import Project

from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import format_of
from topicberg.formats.glue import GlueVersion
from topicberg.formats.reasons import MalformedError
from topicberg.tableflow.layout.layout import read_layout, table_schema
from topicberg.topics import TopicSpec, load_topic
from topicberg.topics.discovery import FoundTopic
from topicberg.topics.new import new_topic_from_kafka

Row = dict[str, Any]


def no_glue(uuid: UUID) -> GlueVersion | None:
    raise AssertionError(f"no record names {uuid}")


@dataclass
class PlainTopic:
    """A topic of plain JSON, by the spec that was written of its records."""

    spec: TopicSpec
    notes: list[str]
    fields: tuple[NestedField, ...]
    """The columns of the value."""
    rows: list[Row]
    rejected: dict[int, str]
    """Reasons, by the number of the record."""
    reference: list[Row | None]
    """What the reference decoder alone has of each record's value; None: it is malformed."""


def plain_topic(
    folder: Path, values: Sequence[bytes], sample: Sequence[bytes] | None = None
) -> PlainTopic:
    """Return the topic of records without keys.

    :param sample: the records that the spec is written of, and their table keeps unknown fields;
        None: all of them
    """
    project = Project(folder)
    read = [(None, value) for value in (values if sample is None else sample)]
    paths, notes = new_topic_from_kafka(
        "readings",
        read,
        "shop",
        project.config,
        FoundTopic(partitions=3),
        no_glue,
        is_enabled=False,
    )
    if sample is not None:
        document = yaml.safe_load(paths[0].read_text())
        document["schema"]["unknown_fields"] = "keep"
        document.pop("event_time", None)
        document["table"] = {"partitioning": ["hour($$timestamp)"]}
        paths[0].write_text(yaml.safe_dump(document))
    spec = load_topic("readings", project.config)
    layout, catalog = read_layout(spec, cast("Any", None), project.config), InMemoryCatalog("test")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", table_schema(spec, layout))
    rows, rejected = rows_of(plan_of(spec, layout, table)[0], [(None, one) for one in values])
    latest = layout.value.latest
    assert latest is not None
    names = {one.name for one in layout.value.fields()}
    fields = tuple(one for one in table.schema().fields if one.name in names)
    decode = format_of(latest).record_decoder(ResolvedSchema(latest, latest, fields))

    def by_reference(value: bytes) -> Row | None:
        try:
            return stored_values.row(decode(value), fields)
        except MalformedError:
            return None

    return PlainTopic(spec, notes, fields, rows, rejected, [*map(by_reference, values)])
