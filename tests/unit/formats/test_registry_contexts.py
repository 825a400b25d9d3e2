"""Ids, GUIDs and references are those of a subject's context in the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_registry import Registry, running

from topicberg.errors import TableflowError
from topicberg.formats.registry import SchemaReaders, SubjectReader, context_of, in_context
from topicberg.formats.subjects import SchemaReader
from topicberg.tableflow.layout.layout import foreign_schemas
from topicberg.tableflow.layout.writers import ForeignSchemas, named_schemas
from topicberg.topics import TopicSpec

EU = ":.eu:orders-value"


@pytest.fixture
def registry() -> Iterator[Registry]:
    held = Registry()
    with running(held) as url:
        held.url = url  # type: ignore[attr-defined]
        yield held


@pytest.fixture
def client(registry: Registry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})  # type: ignore[attr-defined]


def avro(*names: str, of: str = "long") -> Schema:
    fields = [{"name": name, "type": of} for name in names]
    return Schema(json.dumps({"type": "record", "name": "R", "fields": fields}), "AVRO")


def test_context_is_part_of_a_subjects_name() -> None:
    assert context_of(EU) == ".eu"
    assert context_of("orders-value") == context_of(":.:orders-value") == "."
    assert in_context(".eu", "common") == ":.eu:common"
    assert in_context(".eu", ":.us:common") == ":.us:common"
    assert in_context(".", "common") == "common"


def test_id_is_looked_up_in_the_context(client: SchemaRegistryClient) -> None:
    default = client.register_schema("other", avro("a"))
    assert default == client.register_schema(":.eu:other", avro("b")) == 1
    reader = SubjectReader(client)
    plain, eu = ForeignSchemas(reader), ForeignSchemas(reader, ".eu")
    assert plain.look_up([1])
    assert eu.look_up([1])
    assert '"a"' in plain.schemas[1].text
    assert '"b"' in eu.schemas[1].text
    client.register_schema("more", avro("c"))
    assert plain.look_up([2])
    assert not eu.look_up([2])
    assert eu.missing == {2: "which the schema registry does not have in the context .eu"}


def test_guid_is_the_id_of_its_context(client: SchemaRegistryClient, registry: Registry) -> None:
    client.register_schema("other", avro("z"))
    ids = [client.register_schema(subject, avro("a")) for subject in ("other", ":.eu:other")]
    assert ids == [2, 1]
    guid, reader = UUID(client.get_latest_version("other").guid), SubjectReader(client)
    plain, eu = ForeignSchemas(reader), ForeignSchemas(reader, ".eu")
    assert plain.look_up([guid])
    assert eu.look_up([guid])
    assert (plain.guids, eu.guids) == ({guid: 2}, {guid: 1})
    assert {2} == plain.schemas.keys()
    assert {1} == eu.schemas.keys()
    registry.requests.clear()
    assert not eu.look_up([guid])
    assert not registry.requests


def test_guid_is_looked_up_if_only_its_id_is_known(client: SchemaRegistryClient) -> None:
    """The version left its subject, or was one of too many."""
    number = client.register_schema("orders-value", avro("a"))
    guid, reader = UUID(client.get_latest_version("orders-value").guid), SubjectReader(client)
    reader.read("orders-value")
    foreign = ForeignSchemas(reader)
    assert foreign.guids == {guid: number}
    assert foreign.look_up([guid])
    assert foreign.schemas.keys() == {number}
    assert not foreign.look_up([guid])


def test_guids_of_versions_are_known_without_a_request(
    client: SchemaRegistryClient, registry: Registry
) -> None:
    client.register_schema(EU, avro("a"))
    client.register_schema(EU, avro("a", "b"))
    subject = SubjectReader(client).read(EU)
    assert sorted(subject.guids.values()) == [1, 2] == sorted(subject.schemas)
    assert not any("guids" in request for request in registry.requests)


def test_unknown_guid_is_missing(client: SchemaRegistryClient, registry: Registry) -> None:
    guid, foreign = uuid4(), ForeignSchemas(SubjectReader(client))
    assert not foreign.look_up([guid])
    assert foreign.missing == {guid: "which the schema registry does not have"}
    registry.has_guids = False
    old = ForeignSchemas(SubjectReader(client))
    assert not old.look_up([guid])
    assert old.missing == {guid: "which the schema registry does not have"}


def test_references_are_of_the_context(client: SchemaRegistryClient) -> None:
    inner = Schema('{"type": "fixed", "name": "Inner", "size": 1}', "AVRO")
    other = Schema('{"type": "fixed", "name": "Inner", "size": 2}', "AVRO")
    client.register_schema("inner", inner)
    client.register_schema(":.eu:inner", other)
    client.register_schema(":.us:inner", inner)
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Inner"}]})
    for on, expected in (("inner", 2), (":.us:inner", 1)):
        reference, subject = SchemaReference("Inner", on, 1), f":.eu:{expected}"
        number = client.register_schema(subject, Schema(text, "AVRO", [reference]))
        reader = SubjectReader(client)
        for schema in (reader.read(subject).latest, reader.by_id(number, ".eu")):
            ((_, found),) = schema.references
            assert json.loads(found)["size"] == expected


def test_reference_without_its_subject_in_the_context_is_refused(
    client: SchemaRegistryClient, registry: Registry
) -> None:
    client.register_schema("inner", avro("a"))
    client.register_schema(":.eu:inner", avro("b"))
    text = '{"type": "record", "name": "Q", "fields": [{"name": "a", "type": "R"}]}'
    client.register_schema(EU, Schema(text, "AVRO", [SchemaReference("R", "inner", 1)]))
    del registry.subjects[":.eu:inner"]
    with pytest.raises(TableflowError, match=r"subject :\.eu:inner has no version 1"):
        SubjectReader(client).read(EU)


def test_registry_without_contexts_takes_them_for_names(
    client: SchemaRegistryClient, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apicurio has one space of ids, and a reference names the subject as it is."""
    client.register_schema(":.eu:inner", avro("a"))
    text = '{"type": "record", "name": "Q", "fields": [{"name": "a", "type": "R"}]}'
    client.register_schema(EU, Schema(text, "AVRO", [SchemaReference("R", "inner", 1)]))
    registry.ids[".", 1] = registry.ids[".eu", 1]
    registry.subjects["inner"] = registry.subjects.pop(":.eu:inner")
    monkeypatch.setattr(SchemaRegistryClient, "get_contexts", lambda _: [":.:"])
    ((_, found),) = SubjectReader(client).read(EU).latest.references
    assert '"a"' in found


def test_keys_and_values_have_the_contexts_of_their_subjects(client: SchemaRegistryClient) -> None:
    spec = {"name": "orders", "pipeline": "shop", "schema": {"format": "avro", "subject": EU}}
    spec["key"] = {"format": "avro"}
    readers = SchemaReaders(SubjectReader(client), no_glue)
    found = foreign_schemas(TopicSpec.model_validate(spec), readers)
    assert found["key"] is not found["value"]
    spec["key"] = {"format": "avro", "subject": ":.eu:orders-key"}
    found = foreign_schemas(TopicSpec.model_validate(spec), readers)
    assert found["key"] is found["value"]


def no_glue() -> SchemaReader:
    raise AssertionError("no record is of AWS Glue")


def test_named_schemas_are_ids_and_guids() -> None:
    guid = uuid4()
    assert named_schemas(["7", guid.hex.upper()]) == [7, guid]
