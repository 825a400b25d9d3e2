"""Why a schema registry refuses a schema, and how to fix the schema.

Registries have their own terms for a reason: Confluent's are constants such as
``PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL``, Apicurio in a list of differences.
"""

from __future__ import annotations

import re

_MAX_REASON = 300
_OTHER_LEVEL = (
    "set `schema.compatibility: FORWARD` in the spec, where producers write the new version first "
    "(the table reads each record by the version that wrote it)"
)
_CASES: tuple[tuple[str, str, str], ...] = (
    (
        r"PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL|propertySchemasAdded",
        "a property was added to an open object (without `additionalProperties: false`), so older "
        "records may have a property of that name with any type",
        _OTHER_LEVEL + "; or, in a new topic, begin with `additionalProperties: false`, which lets "
        "later versions add optional properties",
    ),
    (
        r"REQUIRED_ATTRIBUTE_ADDED|REQUIRED_PROPERTY_ADDED|[Nn]ew required property",
        "a property became required that older records may lack",
        "remove the property from `required`",
    ),
    (
        r"PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL|propertySchemasRemoved",
        "a property was removed from an object with `additionalProperties: false`, so records that "
        "have it are not valid any more",
        "keep the property as optional; or " + _OTHER_LEVEL,
    ),
    (
        r"ADDITIONAL_PROPERTIES_(REMOVED|NARROWED)|[Aa]dditional properties are no longer allowed",
        "an open object was closed, so older records may have further properties",
        "leave `additionalProperties` as it is; or " + _OTHER_LEVEL,
    ),
    (
        r"READER_FIELD_MISSING_DEFAULT_VALUE|\[AVRO\].*(\[|, )\w+ at [\w/]*/fields/\d+[,\]]",
        "a field was added without a default, which older records lack",
        'give the field a default, for example `"type": ["null", "string"], "default": null`',
    ),
    (
        r"MISSING_ENUM_SYMBOLS|ENUM_ARRAY_(NARROWED|CHANGED)|/symbols|/enum",
        "a value of an enum was removed that older records may have",
        "keep the values of the enum; add new ones after them",
    ),
    (
        r"MESSAGE_REMOVED|ONEOF_FIELD_REMOVED|REQUIRED_FIELD_|removed without reservation",
        "a field or message was removed and its number is free for another field",
        'reserve the number and the name: `reserved 2; reserved "name";`',
    ),
    (
        r"TYPE_MISMATCH|TYPE_(CHANGED|NARROWED)|KIND_CHANGED|NAMED_TYPE_CHANGED|type changed"
        r"|not compatible with writer type|FIXED_SIZE_MISMATCH|MISSING_UNION_BRANCH",
        "a field's type was changed to one in which older records cannot be read",
        "leave the field as it is, and add one of another name with the new type",
    ),
)
"""The registries' terms for a change that a level does not allow (regular expression), what it is,
and how to fix the schema."""
_DIFFERENCES = re.compile(r"list of diff types: \[(.*)\]", re.DOTALL)


def refusal(reason: str, level: str | None) -> tuple[str, str]:
    """Return why a registry refuses a new version of a schema, by its message and the compatibility
    level (if known), and how to fix it."""
    cases = [case for case in _CASES if re.search(case[0], reason)]
    differences = _DIFFERENCES.search(reason)
    text = " ".join((differences[1] if differences else reason).split())
    message = f"{text[:_MAX_REASON]}…" if len(text) > _MAX_REASON else text
    compatibility = f"compatibility {level}" if level else "its compatibility level"
    causes = "; ".join(cause for _, cause, _ in cases) or "the change is not compatible"
    hint = "; or ".join(hint for *_, hint in cases) or (
        "change the file so that older records can be read with it; or set `schema.compatibility` "
        "in the spec"
    )
    return f"not accepted at {compatibility}: {causes} ({message})", hint
