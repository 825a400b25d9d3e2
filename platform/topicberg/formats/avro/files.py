"""What the schema files of Avro are checked for, as strictly as the libraries of producers do."""

from __future__ import annotations

import re
import warnings
from typing import Any

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

from topicberg.errors import TableflowError, causes
from topicberg.formats.limits import parsed_json, too_deep
from topicberg.formats.reasons import quoted
from topicberg.formats.subjects import RegisteredSchema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_file(where: str, schema: RegisteredSchema) -> None:
    """Refuse what Avro's libraries refuse; see :class:`..contract.Format`."""
    import avro.schema
    from avro.errors import AvroException

    parsed = parsed_json(where, schema)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of unknown logical types
            avro.schema.parse(schema.text)  # strict about names, duplicates and unions
        parse_schema(parsed)  # strict about default values
    except (AvroException, SchemaParseException, UnknownType, TypeError, KeyError) as error:
        if any(isinstance(cause, RecursionError) for cause in causes(error)):
            raise too_deep(where) from None
        raise TableflowError(f"{where} is not an Avro schema: {quoted(str(error))}") from None
    _check_names(where, parsed)


def _check_names(where: str, schema: Any) -> None:
    """Refuse field names that Avro's parsers accept and Avro's specification does not."""
    if isinstance(schema, list):
        for branch in schema:
            _check_names(where, branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if not _NAME.fullmatch(str(field["name"])):
                raise TableflowError(f"{where}: {field['name']!r} is not a field name of Avro")
            _check_names(where, field["type"])
        for inner in ("type", "items", "values"):
            if not isinstance(schema.get(inner), str):
                _check_names(where, schema.get(inner))
