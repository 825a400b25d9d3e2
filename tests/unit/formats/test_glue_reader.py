"""The schemas of AWS Glue Schema Registry, read from the emulator by boto3's client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from glue_records import REGISTRY, GlueRegistry
from strict_aws import strict_aws

from topicberg.errors import (
    LoginError,
    TableflowError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
)
from topicberg.formats.glue import FIRST_OTHER, FRESH_SECONDS, GlueReader
from topicberg.tableflow.layout.writers import ForeignSchemas


@pytest.fixture(scope="module")
def registry() -> Iterator[GlueRegistry]:
    with strict_aws() as account:
        yield GlueRegistry(account)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(*fields: str, name: str = "Order") -> str:
    columns = [{"name": one, "type": ["null", "long"], "default": None} for one in fields]
    return json.dumps({"type": "record", "name": name, "fields": columns})


def test_versions_are_a_subjects_and_follow_new_ones(registry: GlueRegistry) -> None:
    name, clock = "orders", Clock()
    first, reader = registry.register(name, "avro", record("id")), registry.reader(now=clock)
    subject = reader.read(name)
    assert subject.latest.text == record("id")
    assert subject.latest.schema_type == "AVRO"
    assert subject.guids == {first: 1}
    second = registry.register(name, "avro", record("id", "note"))
    assert reader.read(name) == subject  # the list is not read again at once
    clock.now += FRESH_SECONDS
    subject = reader.read(name)
    assert list(subject.schemas) == [1, 2]
    assert subject.latest == subject.schemas[2]
    assert subject.guids == {first: 1, second: 2}


def test_new_version_that_a_record_names_is_read_at_once(registry: GlueRegistry) -> None:
    registry.register("new", "avro", record("id"))
    reader = registry.reader(now=Clock())
    reader.read("new")
    version = registry.register("new", "avro", record("id", "note"))
    assert ForeignSchemas(reader, reader.context("new")).look_up([version])
    assert reader.read("new").latest.text == record("id", "note")


def test_many_versions_are_read_over_pages(registry: GlueRegistry) -> None:
    for number in range(120):
        registry.register("pages", "avro", record(*(f"f{one}" for one in range(number + 1))))
    subject = registry.reader().read("pages")
    assert list(subject.schemas) == [*range(1, 121)]
    assert subject.latest.schema_id == 120


@pytest.mark.parametrize("status", ["PENDING", "FAILURE"])
def test_newest_version_that_is_not_available_does_not_define_the_table(
    registry: GlueRegistry, status: str
) -> None:
    name = f"status-{status}"
    registry.register(name, "avro", record("id"))
    newer = registry.register(name, "avro", record("id", "note"))
    registry.set_status(newer, status)
    subject = registry.reader().read(name)
    assert subject.latest.text == record("id")
    assert newer not in subject.guids


def test_version_that_is_deleted_is_decoded_as_long_as_aws_has_it() -> None:
    client = stubbed()
    stub, uuids = Stubber(client), [str(UUID(int=number)) for number in (1, 2)]
    arn = f"arn:aws:glue:us-east-1:123456789012:schema/{REGISTRY}/orders"
    states = [(1, "AVAILABLE"), (2, "DELETING")]
    listed = [
        {"SchemaArn": arn, "SchemaVersionId": uuid, "VersionNumber": number, "Status": status}
        for uuid, (number, status) in zip(uuids, states, strict=True)
    ]
    stub.add_response("list_schema_versions", {"Schemas": listed})
    for one in listed:
        text = record("id", f"of{one['VersionNumber']}")
        stub.add_response(
            "get_schema_version", {**one, "DataFormat": "AVRO", "SchemaDefinition": text}
        )
    with stub:
        subject = GlueReader(client, REGISTRY).read("orders")
    assert subject.latest.schema_id == 1
    assert subject.guids == {UUID(int=1): 1, UUID(int=2): 2}
    assert "of2" in subject.schemas[2].text


def test_record_of_a_version_that_is_checked_waits(registry: GlueRegistry) -> None:
    registry.register("waits", "avro", record("id"))
    newer = registry.register("waits", "avro", record("id", "note"))
    registry.set_status(newer, "PENDING")
    reader = registry.reader()
    reader.read("waits")
    foreign = ForeignSchemas(reader, reader.context("waits"))
    with pytest.raises(UnreachableError, match=r"still checks whether version 2 .* \(PENDING\)"):
        foreign.look_up([newer])
    registry.set_status(newer, "AVAILABLE")
    assert foreign.look_up([newer])
    assert reader.read("waits").latest.schema_id == 2


def test_record_of_a_version_that_is_not_compatible_is_malformed(registry: GlueRegistry) -> None:
    registry.register("fails", "avro", record("id"))
    newer = registry.register("fails", "avro", record("other"))
    registry.set_status(newer, "FAILURE")
    reader = registry.reader()
    reader.read("fails")
    foreign = ForeignSchemas(reader, reader.context("fails"))
    assert not foreign.look_up([newer])
    assert "version 2 of schema fails has the status FAILURE" in foreign.missing[newer]


def test_version_that_is_not_listed_yet_waits(
    registry: GlueRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("late", "avro", record("id"))
    reader = registry.reader()
    known, newer = reader._list("late"), registry.register("late", "avro", record("id", "note"))
    monkeypatch.setattr(reader, "_list", lambda _: known)
    with pytest.raises(UnreachableError, match="does not list version 2 of schema late yet"):
        reader.id_of(newer, reader.context("late"))


def test_versions_of_other_schemas_have_ids_of_their_own(registry: GlueRegistry) -> None:
    registry.register("mine", "avro", record("id"))
    other = registry.register("theirs", "json", '{"type": "object", "title": "T"}')
    reader = registry.reader()
    reader.read("mine")
    context = reader.context("mine")
    assert reader.id_of(other, context) == FIRST_OTHER
    assert reader.id_of(other, context) == FIRST_OTHER
    found = reader.by_id(FIRST_OTHER, context)
    assert (found.schema_type, found.schema_id) == ("JSON", FIRST_OTHER)
    assert reader.guids(context)[other] == FIRST_OTHER
    assert reader.id_of(other, reader.context("theirs")) == 1
    assert reader.by_id(5, context) is None


def test_unknown_version_is_missing(registry: GlueRegistry) -> None:
    reader, version = registry.reader(), uuid4()
    foreign = ForeignSchemas(reader, reader.context("mine"))
    assert not foreign.look_up([version])
    assert foreign.missing[version] == "which AWS Glue Schema Registry does not have"


def test_schema_that_was_created_again_has_other_ids(registry: GlueRegistry) -> None:
    """A number is not given again: records of the deleted version would have wrong values."""
    clock, first = Clock(), registry.register("again", "avro", record("id"))
    reader = registry.reader(now=clock)
    reader.read("again")
    registry.client.delete_schema(SchemaId={"SchemaName": "again", "RegistryName": REGISTRY})
    second = registry.register("again", "avro", record("other"))
    clock.now += FRESH_SECONDS
    subject = reader.read("again")
    assert subject.latest.text == record("other")
    assert subject.guids == {first: 1, second: FIRST_OTHER}
    assert list(subject.schemas) == [FIRST_OTHER]


def test_missing_schema_names_the_registry(registry: GlueRegistry) -> None:
    with pytest.raises(TableflowError, match="registry default-registry of AWS Glue Schema") as one:
        registry.reader().read("nothing")
    assert "TOPICBERG_GLUE_SCHEMA_REGISTRY" in (one.value.hint or "")


def test_schema_without_an_available_version_is_named(registry: GlueRegistry) -> None:
    registry.set_status(registry.register("none", "avro", record("id")), "DELETING")
    with pytest.raises(TableflowError, match="no available version: the newest one, 1, is DELETI"):
        registry.reader().read("none")


def test_protobuf_of_glue_has_awss_index(registry: GlueRegistry) -> None:
    registry.register("proto", "protobuf", 'syntax = "proto3"; message A { int64 id = 1; }')
    assert registry.reader().read("proto").latest.has_glue_index


def stubbed() -> Any:
    make: Any = boto3.client
    return make("glue", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")


def refusing(code: str, status: int = 400) -> GlueReader:
    client = stubbed()
    stub = Stubber(client)
    stub.add_client_error("list_schema_versions", code, "because", status)
    stub.activate()
    return GlueReader(client, REGISTRY)


@pytest.mark.parametrize(
    ("code", "status", "kind", "hint"),
    [
        ("AccessDeniedException", 400, LoginError, "glue:ListSchemaVersions on the registry"),
        ("UnrecognizedClientException", 400, LoginError, "aws sts get-caller-identity"),
        ("ThrottlingException", 400, ThrottledError, ""),
        ("InternalServiceException", 500, UnreachableError, ""),
        ("InvalidInputException", 400, TopicbergError, ""),
    ],
)
def test_refusal_is_one_clear_error(
    code: str, status: int, kind: type[TopicbergError], hint: str
) -> None:
    with pytest.raises(
        kind, match=r"\(schema orders of registry default-registry\): .*because"
    ) as e:
        refusing(code, status).read("orders")
    assert not isinstance(e.value, TableflowError)
    assert hint in (e.value.hint or "")


def test_silent_glue_is_unreachable() -> None:
    client: Any = boto3.client(
        "glue",
        region_name="us-east-1",
        endpoint_url="http://127.0.0.1:9",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"mode": "standard", "max_attempts": 1}),
    )
    reader = GlueReader(client, REGISTRY)
    calls: list[Callable[[], object]] = [
        lambda: reader.read("orders"),
        lambda: reader.id_of(UUID(int=1), "c"),
    ]
    for call in calls:
        with pytest.raises(UnreachableError, match=r"AWS Glue Schema Registry .* does not answer"):
            call()


def test_emulator_lists_as_aws_does(registry: GlueRegistry) -> None:
    registry.register("listed", "avro", record("id"))
    schema, client = {"SchemaName": "listed", "RegistryName": REGISTRY}, registry.client
    answer = client.list_schema_versions(SchemaId=schema)
    assert "NextToken" not in answer
    (one,) = answer["Schemas"]
    assert (one["VersionNumber"], one["Status"]) == (1, "AVAILABLE")
    for called, code in (
        ({"SchemaId": {**schema, "SchemaName": "x"}}, "EntityNotFoundException"),
        ({"SchemaId": schema, "NextToken": "other"}, "InvalidInputException"),
        ({"SchemaId": schema, "NextToken": "9"}, "InvalidInputException"),
    ):
        with pytest.raises(ClientError) as caught:
            client.list_schema_versions(**called)
        assert caught.value.response["Error"]["Code"] == code
