"""Writes docs/reference/: what the models, the checks and the command line say of themselves.

::

    python docs/reference.py  # or `make docs`
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

FOLDER = Path(__file__).parent / "reference"
_DISTRIBUTIONS = ("topicberg", "topicberg_deploy", "topicberg_local")
_MARKUP = re.compile(r":[a-z]+:`~?\.?(?:[\w.]*\.)?(\w+)`")


def cell(value: object) -> str:
    """Return a text of code as it stands in a cell of a table."""
    text = _MARKUP.sub(r"`\1`", " ".join(str(value).split())).replace("``", "`")
    text = re.sub(r"\bdocs/([\w-]+)\.md\b", r"[\1.md](../\1.md)", text)
    outside = re.split(r"(`[^`]*`)", text)
    outside[::2] = [re.sub(r"<(?=\w)", "&lt;", part) for part in outside[::2]]
    return "".join(outside).replace("|", "\\|")


def code(value: object) -> str:
    """Return a value as code; nothing for one that is not there."""
    return f"`{value}`".replace("|", "\\|") if value not in (None, "") else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], ""])


# Settings


def settings_page() -> str:
    """Return the page of the settings, by concern."""
    from topicberg.cli.settings import every_setting
    from topicberg.cli.variables import models, variables_of

    own = {
        variables_of(model, name)[0]: _choices(field.annotation)
        for model in models()
        if model.__module__.partition(".")[0] in _DISTRIBUTIONS
        for name, field in model.model_fields.items()
    }
    parts = [
        "# Settings\n\nFlags precede the environment, and the environment precedes `.env`. "
        "`topicberg settings` shows the values of your deployment and where each is from.\n"
    ]
    settings = [one for one in every_setting({}, {}, {}) if one.variable in own]
    for concern, members in groupby(settings, lambda setting: setting.concern):
        rows = [
            (
                code(setting.variable),
                code(setting.value),
                "; ".join(filter(None, (own[setting.variable], cell(setting.description)))),
            )
            for setting in members
        ]
        title = str(concern)
        parts += [f"## {title[0].upper()}{title[1:]}\n", table(("setting", "default", ""), rows)]
    return "\n".join(parts)


def _choices(annotation: Any) -> str:
    """Return the values of a setting that has a few."""
    if get_origin(annotation) is Literal:
        return ", ".join(map(code, get_args(annotation)))
    return "".join(map(_choices, get_args(annotation)))


# The fields of specs


def _spec_type(field: Mapping[str, Any], models: dict[str, Any]) -> str:
    """Return the type of a field of a JSON Schema, and note the models that it names."""
    if reference := field.get("$ref"):
        name = reference.rpartition("/")[2]
        models.setdefault(name, None)
        return f"[{name}](#{name.lower()})"
    if "enum" in field or "const" in field:
        return ", ".join(code(value) for value in field.get("enum", [field.get("const")]))
    if kinds := field.get("anyOf"):
        types = [_spec_type(kind, models) for kind in kinds if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(types))
    match field.get("type"):
        case "array":
            return f"list of {_spec_type(field.get('items', {}), models)}"
        case "object":
            values = field.get("additionalProperties")
            return f"map to {_spec_type(values, models)}" if isinstance(values, dict) else "map"
        case None:
            return "any"
        case kind:
            names = {"string": "text", "boolean": "true or false"}
            return names.get(kind, kind) + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    names = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    most = 2**53
    return "".join(
        f", {sign} {field[name]:,}"
        for name, sign in names.items()
        if abs(field.get(name, most)) < most
    )


def _spec_fields(model: Mapping[str, Any], models: dict[str, Any]) -> str:
    required = model.get("required", ())
    rows = []
    for name, field in model.get("properties", {}).items():
        kind = _spec_type(field, models)
        default = "required" if name in required else ""
        if isinstance(field.get("default"), str | int | float | bool):
            value = field["default"]
            default = code(value if isinstance(value, str) else json.dumps(value))
        rows.append((code(name), kind, default, cell(field.get("description", ""))))
    return table(("field", "type", "default", ""), rows)


def _spec_models(*roots: type[Any]) -> Iterator[str]:
    """Yield a section for each model that the roots name, in the order in which they name it."""
    for root in roots:
        schema = root.model_json_schema(by_alias=True)
        models: dict[str, Any] = {root.__name__: schema}
        waiting = [root.__name__]
        while waiting:
            name = waiting.pop(0)
            model = schema if name == root.__name__ else schema["$defs"][name]
            known = len(models)
            fields = _spec_fields(model, models)
            waiting += [*models][known:]
            description = cell(model.get("description", "").partition("\n\n")[0])
            yield f"## {name}\n\n{description}\n\n{fields}"


def topics_page() -> str:
    """Return the page of the fields of topic specs."""
    from topicberg.topics import TopicSpec
    from topicberg.topics.patterns import TopicPattern

    head = (
        "# Fields of a topic spec\n\nA file `<topic>.yaml` in the project's folder of topics has "
        "the fields of `TopicSpec`; a file with the field `topics` only describes many topics, by "
        "those of `TopicPattern`. Unknown fields are errors. [Add a topic](../add-a-topic.md) says "
        "how to use them; `topicberg topics schema` prints a JSON Schema for your editor.\n"
    )
    return "\n".join([head, *_spec_models(TopicSpec, TopicPattern)])


def _parameters(function: Any) -> str:
    """Return the parameters of a function, as its docstring describes them."""
    doc = inspect.getdoc(function) or ""
    described = dict(re.findall(r":param (\w+): (.*?)(?=\n:\w|\n\n|\Z)", doc, re.DOTALL))
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = "required" if parameter.default is parameter.empty else ""
        if isinstance(parameter.default, str | int | bool):
            default = code(parameter.default)
        rows.append((code(name), default, cell(described.get(name, ""))))
    return table(("argument", "default", ""), rows)


def derived_page() -> str:
    """Return the page of what makes a derived table."""
    from topicberg import derived_table, table_check
    from topicberg.topics import Rules

    parts = [
        "# Arguments of a derived table\n\n[Add a pipeline](../add-a-pipeline.md) says how to use "
        "them.\n"
    ]
    for function in (derived_table, table_check):
        first = (inspect.getdoc(function) or "").partition("\n\n")[0]
        parts += [f"## {function.__name__}\n\n{cell(first)}\n", _parameters(function)]
    return "\n".join([*parts, *_spec_models(Rules)])


# Checks


def _example_lake() -> Any:
    """Return tables that have every check."""
    import topicberg
    from topicberg.orchestration.assets.lake import Lake
    from topicberg.settings import Settings
    from topicberg.topics import TopicSpec

    rules = {
        "not_null": ["column"],
        "accepted_values": {"column": ["a"]},
        "ranges": {"column": {"min": 0}},
        "unique": ["column"],
        "max_lag_records": 1000,
    }
    common = {
        "pipeline": "shop",
        "checks": rules,
        "freshness": {"warn_minutes": 30, "fail_minutes": 120},
        "derived_partitions": {"granularity": "hourly", "start": "2026-01-01"},
    }
    avro = {"format": "avro", "file": "orders.avsc"}
    specs = [
        {"name": "orders", "schema": avro, "table": {"partitioning": ["price"]}}
        | {"upsert_views": {"orders_by_customer": ["customer"]}},
        {"name": "readings", "schema": {"format": "json", "file": "r.json", "framing": "none"}},
        {"name": "users", "schema": avro, "key": {"format": "string"}, "write_mode": "upsert"}
        | {"history": True},
        {"name": "customers", "schema": avro, "key": avro, "write_mode": "upsert"}
        | {"changelog": {"format": "debezium"}},
        {"name": "totals", "schema": avro, "publishes": "totals", "tableflow": {"enabled": False}},
    ]
    topics = tuple(TopicSpec.model_validate(common | spec) for spec in specs)

    rules_of_table = topicberg.Rules(unique=("column",))

    @topicberg.derived_table(
        source="orders", time_column="time", rules=rules_of_table, code_version="example"
    )
    def totals(orders: Any) -> Any:
        """Totals."""
        return orders

    config = Settings(project_root=Path(tempfile.gettempdir()), deployment="local")
    return Lake(config, topics, (totals,))


def checks_page() -> str:
    """Return the page of the checks, by the assets that have them."""
    from topicberg.orchestration.catalogs.catalog import catalogs

    lake = _example_lake()
    kinds = {
        "TopicTable": "iceberg/<topic>",
        "HistoryTable": "iceberg/<topic>_history",
        "UpsertViewTable": "iceberg/<upsert view>",
        "ComputedTable": "iceberg/<derived table>",
    }
    checks: dict[str, tuple[Any, dict[str, None]]] = {}
    for owned in lake.tables:
        for check in owned.checks(lake):
            text = f"{check.name} {check.description if check.name == 'up_to_date' else ''}"
            checks.setdefault(text, (check, {}))[1][kinds[type(owned).__name__]] = None
    for catalog in catalogs().values():
        for check in catalog.checks(None):
            checks[f"{catalog.name} {check.name}"] = (check, {f"{catalog.name}/<table>": None})
    rows = [
        (
            code(check.name),
            ", ".join(map(code, assets)) if len(assets) < len(kinds) else "every `iceberg/<table>`",
            "yes" if check.blocking else "",
            cell(check.description),
        )
        for check, assets in checks.values()
    ]
    return (
        "# Checks\n\n[Checks and alerts](../checks.md) says when they run and what a result "
        "shows. The failure of a blocking check prevents the computation of what is downstream; "
        "`checks: {blocking: true}` makes the rules of a spec blocking.\n\n"
        + table(("check", "of", "blocking", "passes if"), rows)
    )


# The command line


def cli_page() -> str:
    """Return the page of all commands."""
    import typer

    from topicberg.cli import app

    head = "# Command line\n\n`topicberg COMMAND --help` prints the same in your terminal.\n"
    return "\n".join([head, *_commands("topicberg", typer.main.get_command(app), 1)])


def _commands(path: str, command: Any, depth: int) -> Iterator[str]:
    members = getattr(command, "commands", {})
    if depth > 1:
        text = inspect.cleandoc(command.help or "").partition("\f")[0].strip()
        yield f"{'#' * min(depth, 3)} {path}\n\n{_prose(text)}\n"
    if members:
        for name, member in members.items():
            if not member.hidden:
                yield from _commands(f"{path} {name}", member, depth + 1)
        return
    arguments, options = [], []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            name = (parameter.metavar or parameter.name).upper()
            arguments.append(name if parameter.required else f"[{name}]")
            rows = [code(name)]
        else:
            rows = [", ".join(map(code, [*parameter.opts, *parameter.secondary_opts]))]
        default = parameter.default
        is_shown = isinstance(default, str | int | float) and not isinstance(default, bool)
        options.append((*rows, code(default) if is_shown else "", cell(parameter.help or "")))
    usage = " ".join([path, *arguments, *(["[OPTIONS]"] if len(options) > len(arguments) else [])])
    yield f"```text\n{usage}\n```\n"
    if options:
        yield table(("", "default", ""), options)


def _prose(text: str) -> str:
    return "\n\n".join(cell(part).replace("\\|", "|") for part in text.split("\n\n"))


# Types


_AVRO: dict[str, Any] = {
    **{name: name for name in ("boolean", "int", "long", "float", "double", "string", "bytes")},
    "enum": {"type": "enum", "name": "E", "symbols": ["A"]},
    "fixed": {"type": "fixed", "name": "F", "size": 4},
    "array of T": {"type": "array", "items": "int"},
    "map of T": {"type": "map", "values": "int"},
    "record": {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
    "null or T": ["null", "int"],
    "several types": ["null", "int", "string"],
    "int and long": ["int", "long"],
}
_JSON: dict[str, Any] = {
    **{name: {"type": name} for name in ("boolean", "integer", "number", "string")},
    "`enum` of strings": {"enum": ["a", "b"]},
    **{
        f"`connect.type: {name}`": {"type": "integer", "connect.type": name}
        for name in ("int8", "int16", "int32")
    },
    "`connect.type: float32`": {"type": "number", "connect.type": "float32"},
    "`connect.type: bytes`": {"type": "string", "connect.type": "bytes"},
    "`format: date-time`": {"type": "string", "format": "date-time"},
    "array of T": {"type": "array", "items": {"type": "integer"}},
    "object with `properties`": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "object without, values of one type": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    },
    "null or T, also in `oneOf`": {"type": ["null", "integer"]},
    "several types": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "no type that a column has": {},
}
_PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
enum E { A = 0; }
message Record {
%s}
message M { int32 a = 1; }
"""
_PROTOBUF_SCALARS = (
    "bool float double int32 sint32 sfixed32 uint32 fixed32 int64 sint64 sfixed64 uint64 fixed64 "
    "string bytes"
)
_PROTOBUF_MESSAGES = (
    "google.protobuf.Timestamp google.type.Date google.type.TimeOfDay google.protobuf.Int64Value "
    "google.protobuf.StringValue"
)
_PROTOBUF_TYPES = {
    **{name: name for name in _PROTOBUF_SCALARS.split()},
    "enum": "E",
    "message": "M",
    **{f"`{name}`": name for name in _PROTOBUF_MESSAGES.split()},
    "`repeated T`": "repeated int32",
    "`map<K, V>`": "map<string, int32>",
    "`optional T`": "optional int32",
}


def _type(kind: Any) -> str:
    from pyiceberg import types as T

    match kind:
        case T.StructType():
            fields = (f"{one.name}: {_type(one.field_type)}" for one in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case T.ListType():
            return f"list<{_type(kind.element_type)}>"
        case T.MapType():
            return f"map<{_type(kind.key_type)}, {_type(kind.value_type)}>"
    return str(kind)


def _fields(types: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return a field for each type, by its name."""
    return [(f"f{number:02}", kind) for number, kind in enumerate(types.values(), 1)]


def _columns(
    format_name: str,
    types: Mapping[str, Any],
    text: str,
    convert: Callable[[Any], Any] | None = None,
) -> str:
    """Return the table of the columns that the fields of a schema become."""
    from topicberg.formats.subjects import RegisteredSchema
    from topicberg.formats.table import FORMATS

    entry = FORMATS[format_name]
    schema = RegisteredSchema(1, entry.schema_type, text)
    if convert:
        schema = convert(schema)
    columns = {field.name: field for field in entry.load().fields("example", schema, count(1))}
    fields = [columns[name] for name, _ in _fields(types)]
    rows = [
        (name, code(_type(field.field_type)), cell(field.doc or ""))
        for name, field in zip(types, fields, strict=True)
    ]
    return table(("type", "column", ""), rows)


def _avro_columns(types: Mapping[str, Any], convert: Callable[[Any], Any] | None = None) -> str:
    fields = [{"name": name, "type": kind} for name, kind in _fields(types)]
    text = json.dumps({"type": "record", "name": "Example", "fields": fields})
    return _columns("avro", types, text, convert)


def types_page() -> str:
    """Return the page of the types of columns, by format, and of the limits of schemas."""
    from topicberg.formats.avro.schema import LOGICAL
    from topicberg.formats.connect import LOGICAL_TYPES, with_connect_types
    from topicberg.formats.metadata import CHANGE_TYPES, METADATA_TYPES
    from topicberg.topics.spec import metadata_description

    avro = dict(_AVRO)
    for kind, logical in LOGICAL:
        if logical and not logical.startswith("topicberg.") and kind != "fixed":
            more = {"precision": 10, "scale": 2} if logical == "decimal" else {}
            name = "decimal(10, 2)" if more else logical
            avro[f"`{name}` of {kind}"] = {"type": kind, "logicalType": logical, **more}
    connect: dict[str, Any] = {}
    for name, (kind, _) in LOGICAL_TYPES.items():
        inner = {"fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]}
        connect[code(name)] = {"type": kind, "connect.name": name} | (
            {"name": "V", **inner} if kind == "record" else {}
        )
    json_schema = json.dumps({"type": "object", "properties": dict(_fields(_JSON))})
    lines = (
        f"  {kind} {name} = {number};\n"
        for number, (name, kind) in enumerate(_fields(_PROTOBUF_TYPES), 1)
    )
    metadata = METADATA_TYPES | CHANGE_TYPES
    parts = [
        "# Types of columns\n\nThe Iceberg type of the column that a field becomes. Each column is "
        "optional. [The Tableflow engine](../tableflow.md#the-table) says how key, value and "
        "metadata become one table.\n",
        "## Avro\n",
        _avro_columns(avro),
        "## JSON Schema\n",
        _columns("json", _JSON, json_schema),
        "## Protobuf\n",
        _columns("protobuf", _PROTOBUF_TYPES, _PROTOBUF % "".join(lines)),
        "## Kafka Connect and Debezium\n\nIn topics with a change log, by `connect.name` (Avro) or "
        "`title` (JSON Schema).\n",
        _avro_columns(connect, with_connect_types),
        "## Metadata columns\n",
        table(
            ("column", "type", ""),
            [
                (code(f"$${name}"), code(kind), cell(metadata_description(f"$${name}") or ""))
                for name, kind in metadata.items()
            ],
        ),
        "## Limits\n\nA schema beyond a limit is refused, and a record beyond one is malformed.\n",
        table(("limit", "value", ""), _limits()),
    ]
    return "\n".join(parts)


def _limits() -> Iterator[tuple[str, str, str]]:
    """Yield the limits of schemas and records: the constants of the formats, and their texts."""
    modules = (
        "limits",
        "subjects",
        "avro.schema",
        "json.syntax",
        "protobuf.wire",
        "protobuf.record",
    )
    for module in modules:
        loaded = import_module(f"topicberg.formats.{module}")
        body = ast.parse(textwrap.dedent(inspect.getsource(loaded))).body
        for node, after in pairwise(body):
            match node, after:
                case (
                    ast.Assign(targets=[ast.Name(id=name)]),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ) if name.startswith("MAX_"):
                    yield code(name), f"{getattr(loaded, name):,}", cell(text)


PAGES = {
    "settings.md": settings_page,
    "topics.md": topics_page,
    "derived-tables.md": derived_page,
    "checks.md": checks_page,
    "cli.md": cli_page,
    "types.md": types_page,
}


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each page."""
    note = "<!-- Written by docs/reference.py: change the code that it reads. -->"
    for name, page in PAGES.items():
        yield FOLDER / name, f"{page().rstrip()}\n\n{note}\n"


if __name__ == "__main__":
    for path, text in pages():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
