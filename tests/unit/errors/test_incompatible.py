"""What a registry says of an incompatible schema, in words that lead to a remedy."""

from __future__ import annotations

import pytest

from topicberg.errors.incompatible import refusal

APICURIO = (
    "io.apicurio.registry.rules.violation.RuleViolationException: Incompatible artifact: "
    "orders-value [{kind}], num of incompatible diffs: {{1}}, list of diff types: [{difference}]"
)
CONFLUENT = (
    "Schema being registered is incompatible with an earlier schema for subject orders-value, "
    "details: [{{errorType:'{error}', description:'…', additionalInfo:''}}]"
)


@pytest.mark.parametrize(
    ("kind", "difference", "error", "hint"),
    [
        (
            "JSON",
            "Object type property schemas narrowed at /propertySchemasAdded",
            "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
            "compatibility: FORWARD",
        ),
        (
            "JSON",
            "A new required property was added at /required",
            "REQUIRED_ATTRIBUTE_ADDED",
            "from `required`",
        ),
        (
            "JSON",
            "Object type property schemas narrowed at /propertySchemasRemoved",
            "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
            "keep the property",
        ),
        (
            "JSON",
            "Additional properties are no longer allowed at /additionalProperties",
            "ADDITIONAL_PROPERTIES_REMOVED",
            "leave `additionalProperties`",
        ),
        ("JSON", "Subschema type changed at /properties/a", "TYPE_CHANGED", "another name"),
        ("AVRO", "b at /fields/1", "READER_FIELD_MISSING_DEFAULT_VALUE", '"default": null'),
        (
            "AVRO",
            "reader type: INT not compatible with writer type: STRING at /fields/0/type",
            "TYPE_MISMATCH",
            "another name",
        ),
        (
            "PROTOBUF",
            "2 fields removed without reservation, message A at /A",
            "MESSAGE_REMOVED",
            "reserved 2",
        ),
        (
            "PROTOBUF",
            "Field type changed, message A , before: string , after int32 at /A",
            "FIELD_SCALAR_KIND_CHANGED",
            "another name",
        ),
    ],
)
def test_refusal_of_each_registry_names_the_remedy(
    kind: str, difference: str, error: str, hint: str
) -> None:
    for reason in (
        APICURIO.format(kind=kind, difference=difference),
        CONFLUENT.format(error=error),
    ):
        what, remedy = refusal(reason, "BACKWARD")
        assert hint in remedy
        assert what.startswith("not accepted at compatibility BACKWARD: ")
        assert "; or " not in remedy or remedy.count("another name") < 2
    assert difference in refusal(APICURIO.format(kind=kind, difference=difference), None)[0]


def test_refusal_of_an_added_avro_field_is_not_a_type() -> None:
    reason = APICURIO.format(kind="AVRO", difference="b at /fields/1, c at /fields/2")
    assert "type was changed" not in refusal(reason, "FULL")[0]
    reason = APICURIO.format(
        kind="AVRO", difference="reader type: INT not compatible with writer type: X at /fields/0"
    )
    assert "without a default" not in refusal(reason, "FULL")[0]


def test_refusal_in_unknown_words_is_quoted() -> None:
    what, hint = refusal("the moon is full", "FULL")
    assert "the moon is full" in what
    assert "schema.compatibility" in hint
    assert len(refusal("x" * 10_000, None)[0]) < 500
