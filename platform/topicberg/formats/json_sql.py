"""The Spark SQL that decodes a JSON record by its plan; see :mod:`.json_schema`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence

from pyiceberg.types import DecimalType, IcebergType, StructType

from topicberg.formats import DECODED, connect_values, sql
from topicberg.formats.avro_values import DAYS, INT, LONG, MICROS
from topicberg.formats.connect_values import TEXTS
from topicberg.formats.json_nodes import Kind, Node
from topicberg.formats.json_plan import SCALARS, Member, Plan, columns_of
from topicberg.spark import quote

VARIANTS: set[Kind] = {"union", *(kind for kind, one in SCALARS.items() if one.raw == "variant")}
INEXACT: set[Kind] = SCALARS.keys() - VARIANTS - {"boolean", "float", "double", "binary"}
"""Kinds that take a variant when a record is read for the second time."""
_MILLIS = -62_135_596_800_000, 253_402_300_799_999
RANGES: dict[Kind, tuple[int, int]] = {
    "int": INT,
    "long": LONG,
    "date": DAYS,
    "timestamp": _MILLIS,
    "timestamptz": _MILLIS,
    "timestamp-micros": MICROS,
    "timestamp-nanos": (LONG[0] + 1, LONG[1] - 1),  # the others are infinite
}
DATE_TIME = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})\z"
)
"""``date-time`` of RFC 3339, section 5.6."""
COMPARED: tuple[Kind, ...] = ("string", "boolean", "int", "long")
"""Kinds whose JSON text is the same for the same value."""
OTHER_NUMBERS = ("NaN", "Infinity", "-Infinity")
"""How Kafka Connect writes a number that JSON does not have."""
_CORRUPT = "c"
_OK = f"ok_{uuid.uuid4().hex}"
"""What follows the text of a record; no record knows it, so none can have it in its text."""
_OPTIONS = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "columnNameOfCorruptRecord": _CORRUPT,
    "mode": "PERMISSIVE",
}
_NUMBER = r"^-?[0-9][0-9.eE+-]*$"
_SURROGATE = r"\\u[dD][89a-fA-F]"
_PAIRED = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\z"
_NEXT_PROPERTY = r'\]\s*,\s*"'
"""What follows an array in an object."""
DIGITS = 15
"""A number in scientific notation with more digits than a double has may be read as another number;
so may one of more than 38 digits in any notation."""
TEXT_DIGITS = 17


def inexact(digits: int) -> str:
    """Return the pattern of numbers that a variant may hold as another number.

    The repetitions are bounded: Java matches a repeated group recursively, and a record with a
    longer number would end Spark with a stack overflow.
    """
    return rf"(?:[0-9]\.?){{{digits + 1},38}}[eE]|(?:[0-9]\.?){{39}}"


INFINITE = r"[eE][+]?[0-9]{3}|[0-9]{309}"
_OVER_BIGINT = "9223372036854775808D"
"""2^63 as a double: the largest bigint converts to it, and is what it converts back to."""
_DOUBLE = r"[0-9][.E]|Infinity"
"""In the JSON text of a variant: a double, among others."""


class Reader:
    """Builds SQL that reads JSON text by a plan.

    :param text: the column with the record's whole text
    :param exact: read variants, which distinguish types that ``from_json`` does not
    """

    def __init__(self, text: str, *, exact: bool) -> None:
        self.text = text
        self.exact = exact
        self.exactly = self if exact else Reader(text, exact=True)

    # --- records ---

    def parsed(self, text: str, plan: Plan) -> str:
        """Return what ``from_json`` reads.

        The text becomes the only element of an array, because Spark ignores text that follows a
        value.
        """
        options = ", ".join(f"'{key}', '{value}'" for key, value in _OPTIONS.items())
        schema = f"r array<{self.raw(plan)}>, {_OK} boolean, {_CORRUPT} string"
        return f"from_json({_enclosed(text)}, {sql.text(schema)}, map({options}))"

    def first(self, row: str) -> str:
        """Return the record of the parsed text, or null if there is none."""
        return f"get({row}.r, 0)"

    def record(self, row: str, value: str, plan: Plan) -> str:
        """Return the table's row and :data:`DECODED`; null if the text does not fit.

        :param row: the parsed text
        :param value: the column's value of the record
        """
        assert isinstance(plan.column, StructType)  # noqa: S101  the table's row
        values = {name: f"{value}.{quote(name)}" for name in self.held(plan)}
        marked = sql.row(plan.column, values, (DECODED, "true"))
        return f"if({self.fits(row, value, plan)}, {marked}, NULL)"

    def fits(self, row: str, value: str, plan: Plan) -> str:
        """Return whether there is a value, and of the right type."""
        whole = f"{row}.{_CORRUPT} IS NULL AND {row}.{_OK} IS NOT NULL AND size({row}.r) = 1"
        first = self.first(row)
        return f"{whole} AND {self.present(first, plan)} AND NOT {self.misfit(first, value, plan)}"

    def held(self, plan: Plan) -> Sequence[str]:
        """Return the fields of a row that may have a value."""
        return list(plan.children) if plan.kind == "struct" else list(_columns(plan))

    # --- what from_json reads ---

    def is_variant(self, plan: Plan) -> bool:
        return plan.kind in VARIANTS or (self.exact and plan.kind in INEXACT)

    def raw(self, plan: Plan) -> str:
        """Return the type that ``from_json`` reads."""
        if self.is_variant(plan):
            return "variant"
        children = {name: self.raw(child) for name, child in plan.children.items()}
        match plan.kind:
            case "list":
                return f"array<{children['element']}>"
            case "map":
                return f"map<string,{children['value']}>"
            case "entries":
                return f"array<{sql.struct_type(children.items())}>"
            case "struct":
                return sql.struct_type(children.items())
        return SCALARS[plan.kind].raw

    def present(self, raw: str, plan: Plan) -> str:
        """Return whether there is a value: a variant may be the null of JSON."""
        return _is_there(raw) if self.is_variant(plan) else f"{raw} IS NOT NULL"

    def converts(self, plan: Plan) -> bool:
        """Return whether the column's value differs from what ``from_json`` reads."""
        match plan.kind:
            case "struct":
                same = list(_columns(plan)) == list(plan.children)
                return not same or any(map(self.converts, plan.children.values()))
            case "list":
                return self.converts(plan.children["element"])
            case "map":
                return True  # a key may be repeated
        return self.raw(plan) != sql.spark_type(plan.column)

    # --- values ---

    def value(self, raw: str, plan: Plan) -> str:
        """Return the column's value; null if there is none, or if it does not fit.

        A struct is null only if there is no value: see :meth:`misfit`.
        """
        if not self.converts(plan):
            return raw
        match plan.kind:
            case "struct":
                assert isinstance(plan.column, StructType)  # noqa: S101  the plan's
                values = {
                    name: self.value(f"{raw}.{quote(name)}", child)
                    for name, child in plan.children.items()
                }
                return f"if({raw} IS NOT NULL, {sql.row(plan.column, values)}, NULL)"
            case "list":
                return self.list(raw, plan.children["element"])
            case "map":
                return self.map(raw, plan)
            case "entries":
                return self.entries(raw, plan)
            case "union":
                return self.union(raw, plan)
        return self.scalar(raw, plan)

    def list(self, raw: str, element: Plan) -> str:
        if not self.can_misfit(element):
            return sql.each(raw, lambda x: self.value(x, element))
        return _list_of(raw, lambda x: self.checked(x, element))

    def checked(self, raw: str, plan: Plan) -> str:
        """Return a value ``v`` and whether it fits, ``ok``."""
        return let(
            self.value(raw, plan),
            lambda value: f"struct({value} AS v, NOT {self.misfit(raw, value, plan)} AS ok)",
        )

    def map(self, raw: str, plan: Plan) -> str:
        element = plan.children["value"]
        if not self.converts(element):
            return f"map_concat({raw})"  # the last value of a repeated key is used
        return _map_of(raw, lambda x: self.checked(x, element))

    def entries(self, raw: str, plan: Plan) -> str:
        """Return an array of keys and values as a map; null if one does not fit."""
        key, value = plan.children["key"], plan.children["value"]
        return let(
            sql.each(
                raw,
                lambda x: let(
                    self.checked(f"{x}.key", key),
                    lambda k: let(
                        self.checked(f"{x}.value", value),
                        lambda v: (
                            f"struct({k}.v AS key, {v}.v AS value, "
                            f"{k}.ok AND {k}.v IS NOT NULL AND {v}.ok AS ok)"
                        ),
                    ),
                ),
            ),
            _map_of_entries,
        )

    def misfit(self, raw: str, value: str, plan: Plan) -> str:
        """Return whether there is a value that does not fit; never null."""
        if not self.can_misfit(plan):
            return "false"
        match plan.kind:
            case "struct":
                return _any(
                    [
                        self.misfit(f"{raw}.{quote(name)}", f"{value}.{quote(name)}", child)
                        for name, child in plan.children.items()
                        if self.can_misfit(child)
                    ]
                )
            case "list" if not self.converts(element := plan.children["element"]):
                return _any([sql.some(raw, lambda x: self.misfit(x, x, element))])
            case "map" if not self.converts(element := plan.children["value"]):
                return _any([sql.some(f"map_values({raw})", lambda x: self.misfit(x, x, element))])
            case "string" if not self.exact:
                return _like_another_type(raw)
            case "float" | "double":
                return _any([f"abs({raw}) = double('infinity')"])
            case "any-float" | "any-double" if not self.exact:
                return _any([f"abs({raw}) = double('infinity')"])
        return _any([f"{self.present(raw, plan)} AND {value} IS NULL"])

    def can_misfit(self, plan: Plan) -> bool:
        """Return whether a value may not fit although ``from_json`` accepts it."""
        match plan.kind:
            case "struct" | "list" | "map":
                return any(map(self.can_misfit, plan.children.values()))
            case "boolean" | "binary":
                return False
            case "int" | "long":
                return self.exact or self.converts(plan)
        return True

    # --- values in a variant ---

    def union(self, raw: str, plan: Plan) -> str:
        """Return the first member that the value fits, or rather one that declares all properties.

        An object fits each member whose properties are optional, and would lose the others.
        """
        objects = [m.plan.kind for m in plan.members if m.plan.kind in ("struct", "map", "json")]
        by_properties = "struct" in objects and len(objects) > 1
        by_place = any(member.place is None for member in plan.members)

        def tried(member: Member, fields: str) -> str:
            node = member.plan.node
            value = self.of_variant(raw, member.plan)
            found = _discriminated(raw, fields, node)
            value = value if found == "true" else f"if({found}, {value}, NULL)"
            if not (by_properties or by_place):
                return let(
                    value, lambda x: f"if({x} IS NOT NULL, {_placed(plan, member, x)}, NULL)"
                )
            return let(
                value,
                lambda x: (
                    f"struct({x} IS NOT NULL AS fits, {_declares(fields, node)} AS declares, "
                    f"{_placed(plan, member, x)} AS v)"
                ),
            )

        def chosen(fields: str) -> str:
            values = ", ".join(tried(member, fields) for member in plan.members)
            if not (by_properties or by_place):
                return f"coalesce({values})"
            return let(
                f"array({values})",
                lambda xs: (
                    f"coalesce(get(filter({xs}, x -> x.fits AND x.declares), 0), "
                    f"get(filter({xs}, x -> x.fits), 0)).v"
                ),
            )

        value = let(_object(raw), chosen) if "struct" in objects else chosen("")
        return f"if({self.present(raw, plan)}, {value}, NULL)"

    def of_variant(self, raw: str, plan: Plan) -> str:
        """Return the column's value of a variant; null if there is none, or it does not fit."""
        match plan.kind:
            case "boolean":
                return f"if({_is(raw, 'BOOLEAN')}, CAST({raw} AS boolean), NULL)"
            case "binary":
                return _unbase64(raw)
            case "float" | "double" as kind:
                return _finite(raw, kind, sql.spark_type(plan.column))
            case "list":
                element = plan.children["element"]
                return _list_of(_array(raw), lambda x: self.checked_variant(x, element))
            case "map":
                element = plan.children["value"]
                return _map_of(_object(raw), lambda x: self.checked_variant(x, element))
            case "entries":
                key, value = plan.children["key"], plan.children["value"]
                items = sql.each(
                    _array(raw),
                    lambda x: let(
                        _object(x),
                        lambda o: let(
                            f"struct({self.checked_variant(_at(o, 'key'), key)} AS key, "
                            f"{self.checked_variant(_at(o, 'value'), value)} AS value)",
                            lambda e: (
                                f"struct({e}.key.v AS key, {e}.value.v AS value, {e}.key.ok "
                                f"AND {e}.key.v IS NOT NULL AND {e}.value.ok AS ok)"
                            ),
                        ),
                    ),
                )
                return let(items, _map_of_entries)
            case "struct":
                return let(_object(raw), lambda fields: self.of_object(fields, plan))
        return self.exactly.scalar(raw, plan) if plan.kind != "union" else self.union(raw, plan)

    def checked_variant(self, raw: str, plan: Plan) -> str:
        """Return a value ``v`` and whether it fits, ``ok``."""
        return let(
            self.of_variant(raw, plan),
            lambda v: f"struct({v} AS v, {v} IS NOT NULL OR NOT {_is_there(raw)} AS ok)",
        )

    def of_object(self, fields: str, plan: Plan) -> str:
        """Return a struct of a map of variants; null if one of them does not fit."""
        assert isinstance(plan.column, StructType)  # noqa: S101  the plan's
        values = {
            name: self.of_variant(_at(fields, name), child) for name, child in plan.children.items()
        }

        def checked(struct: str) -> str:
            misfits = [
                f"{_is_there(_at(fields, name))} AND {struct}.{quote(name)} IS NULL"
                for name in plan.children
            ]
            return f"if({_any(misfits)}, NULL, {struct})"

        return f"if({fields} IS NOT NULL, {let(sql.row(plan.column, values), checked)}, NULL)"

    # --- scalars ---

    def scalar(self, raw: str, plan: Plan) -> str:
        kind, want = plan.kind, sql.spark_type(plan.column)
        match kind:
            case "json":
                return self.json(raw, plan.node.opening)
            case "string":
                return _string(raw)
            case "date-time":
                return self.once(_string(raw) if self.exact else raw, _time)
            case "decimal":
                return self.decimal(raw, plan)
            case "any-float" | "any-double" if self.exact:
                return self.any_number(raw, kind.removeprefix("any-"), want)
            case "decimal-text":
                return self.decimal_text(raw, plan.node.scale)
            case "variable-decimal":
                return self.variable_decimal(raw)
            case _ if kind in TEXTS:
                return self.once(
                    _string(raw) if self.exact else raw,
                    lambda t: connect_values.text_value(TEXTS[kind], t),
                )
        if kind not in RANGES:
            return f"CAST({raw} AS {want})"
        low, high = RANGES[kind]
        number = raw
        if self.exact or kind not in ("int", "long"):
            number = self.once(
                self.whole(raw) if self.exact else raw,
                lambda n: f"CAST(if({n} BETWEEN {low} AND {high}, {n}, NULL) AS bigint)",
            )
        match kind:
            case "date":
                return f"date_from_unix_date(CAST({number} AS int))"
            case "timestamptz":
                return f"timestamp_millis({number})"
            case "timestamp-nanos":
                return self.once(number, connect_values.nanos_value)
            case "timestamp-micros" | "timestamp":
                unit = "1000 AS decimal(4,0)" if kind == "timestamp" else "1000000 AS decimal(7,0)"
                seconds = f"CAST({number} / CAST({unit}) AS decimal(18,6))"
                return f"TIMESTAMP_NTZ'1970-01-01' + make_dt_interval(0, 0, 0, {seconds})"
        if want in ("float", "double"):  # null if it has more digits than the column
            return self.once(
                number,
                lambda n: (
                    f"if(CAST(CAST({n} AS {want}) AS bigint) = {n} "
                    f"AND CAST({n} AS {want}) < {_OVER_BIGINT}, CAST({n} AS {want}), NULL)"
                ),
            )
        return f"try_cast({number} AS {want})"

    def once(self, value: str, body: Callable[[str], str]) -> str:
        """Return ``body`` of a value that is short, or else computed once."""
        return let(value, body) if self.exact else body(value)

    def json(self, raw: str, opening: str) -> str:
        """Return the JSON text; null if it may have another number than the record.

        :param opening: the characters that the text may begin with; empty: any
        """
        text, bare = f"to_json({raw})", _without_strings(self.text)
        digits = sql.text(inexact(TEXT_DIGITS))
        other = f" OR NOT contains({sql.text(opening)}, left({text}, 1))" if opening else ""
        changed = (
            f"({self.text} RLIKE {digits} AND {bare} RLIKE {digits}) OR "
            f"(contains({text}, 'Infinity') AND {bare} RLIKE {sql.text(INFINITE)})"
        )
        return (
            f"CASE WHEN {text} RLIKE {sql.text(_DOUBLE)} AND ({changed}) THEN NULL "
            f"WHEN is_variant_null({raw}){other} THEN NULL ELSE {text} END"
        )

    def number(self, variant: str, precision: int, scale: int) -> str:
        """Return a number as a decimal; null if it is not a number, or not exactly one such."""
        number = f"try_variant_get({variant}, '$', 'decimal({precision},{scale})')"
        digits = sql.text(inexact(DIGITS))
        bare = _without_strings(self.text)
        inexactly = f"{self.text} RLIKE {digits} AND {bare} RLIKE {digits}"
        double = f"CAST({number} AS double) = try_variant_get({variant}, '$', 'double')"
        places = f"length(split_part(try_variant_get({variant}, '$', 'string'), '.', 2)) <= {scale}"
        return (
            f"CASE WHEN schema_of_variant({variant}) RLIKE '^(BIGINT|DECIMAL)' "
            f"THEN if({places}, {number}, NULL) "
            f"WHEN schema_of_variant({variant}) = 'DOUBLE' "
            f"THEN if({double} AND NOT ({inexactly}), {number}, NULL) END"
        )

    def whole(self, variant: str) -> str:
        return self.number(variant, 38, 0)

    def decimal(self, raw: str, plan: Plan) -> str:
        """Return a number, or Connect's bytes: base64 of the unscaled value, big-endian."""
        precision, scale = plan.node.precision, plan.node.scale
        kind, want = f"decimal({precision},{scale})", sql.spark_type(plan.column)
        avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        text = f"CAST({raw} AS string)"
        is_base64 = (
            f"{_is(raw, 'STRING')} AND length({text}) <= 24 AND {text} RLIKE {sql.text(BASE64)}"
        )

        def unscaled(value: str) -> str:
            # Avro's bytes are the length, doubled for a short one, and Connect's bytes.
            framed = f"concat(unhex(lpad(hex(length({value}) * 2), 2, '0')), {value})"
            framed = f"if(length({value}) BETWEEN 1 AND 16, {framed}, NULL)"
            return f"from_avro({framed}, {sql.text(json.dumps(avro))}, map('mode', 'PERMISSIVE'))"

        base64 = let(f"if({is_base64}, unbase64({text}), NULL)", unscaled)
        value = f"coalesce({self.number(raw, precision, scale)}, {base64})"
        if plan.column == DecimalType(precision, scale):
            return value
        return let(
            value,
            lambda x: (
                f"if(CAST(try_cast({x} AS {want}) AS {kind}) = {x}, try_cast({x} AS {want}), NULL)"
            ),
        )

    def any_number(self, raw: str, kind: str, want: str) -> str:
        """Return a finite number, or one of the texts for the others."""
        texts = ", ".join(map(sql.text, OTHER_NUMBERS))
        other = let(_string(raw), lambda t: f"if({t} IN ({texts}), CAST({t} AS {want}), NULL)")
        return f"coalesce({_finite(raw, kind, want)}, {other})"

    def decimal_text(self, raw: str, scale: int) -> str:
        """Return all digits of a number, or of Connect's bytes."""
        number = self.number(raw, 38, scale) if 0 <= scale <= 38 else "NULL"
        bytes_ = let(_unbase64(raw), lambda x: connect_values.decimal_text(x, str(scale)))
        return f"coalesce(CAST({number} AS string), {bytes_})"

    def variable_decimal(self, raw: str) -> str:
        """Return all digits of Debezium's object of a scale and an unscaled value."""

        def parts(fields: str) -> str:
            value = _unbase64(_at(fields, "value"))
            return sql.struct([("scale", self.whole(_at(fields, "scale"))), ("value", value)])

        def text(found: str) -> str:
            return connect_values.decimal_text(f"{found}.value", f"CAST({found}.scale AS int)")

        return let(let(_object(raw), parts), text)


# --- SQL ---


def _finite(variant: str, kind: str, want: str) -> str:
    """Return a finite number, read as one type, as another one."""
    number = f"if({_is_number(variant)}, try_variant_get({variant}, '$', '{kind}'), NULL)"
    return let(number, lambda n: f"if(abs({n}) < double('infinity'), CAST({n} AS {want}), NULL)")


def _string(variant: str) -> str:
    return f"if({_is(variant, 'STRING')}, CAST({variant} AS string), NULL)"


def _unbase64(variant: str) -> str:
    """Return the bytes of base64; null: it is not base64."""
    text = f"CAST({variant} AS string)"
    is_base64 = f"{_is(variant, 'STRING')} AND {text} RLIKE {sql.text(BASE64)}"
    return f"if({is_base64}, unbase64({text}), NULL)"


def _columns(plan: Plan) -> dict[str, IcebergType]:
    return columns_of(plan.column) if isinstance(plan.column, StructType) else {}


def let(value: str, body: Callable[[str], str]) -> str:
    """Return ``body`` of a value that is computed once: SQL has no other way in an expression."""
    return f"{sql.each(f'array({value})', body)}[0]"


def _all_fit(values: str) -> str:
    return f"forall({values}, x -> x.ok)"


def _list_of(items: str, checked: Callable[[str], str]) -> str:
    """Return an array of checked values; null if one does not fit."""
    return let(
        sql.each(items, checked),
        lambda xs: f"if({_all_fit(xs)}, {sql.each(xs, lambda x: f'{x}.v')}, NULL)",
    )


def _map_of(mapping: str, checked: Callable[[str], str]) -> str:
    """Return a map of checked values; null if one does not fit."""
    entries = sql.each(
        f"map_entries({mapping})",
        lambda x: let(
            checked(f"{x}.value"), lambda y: f"struct({x}.key AS key, {y}.v AS value, {y}.ok AS ok)"
        ),
    )
    return let(entries, _map_of_entries)


def _map_of_entries(entries: str) -> str:
    """Return a map of checked entries; null if one does not fit. The last of equal keys is used."""
    pairs = sql.each(entries, lambda x: f"struct({x}.key AS key, {x}.value AS value)")
    return f"if({_all_fit(entries)}, map_from_entries({pairs}), NULL)"


def _any(conditions: Sequence[str]) -> str:
    """Return whether one condition is true; never null."""
    found = sql.either(conditions)
    return f"coalesce({found}, false)" if found else "false"


def opening(name: str) -> bytes:
    """Return the text before a value that is put into an object."""
    return f"{{{json.dumps(name)}:".encode()


def sound(text: str) -> str:
    """Return whether a text is Unicode, in its bytes and its escapes."""
    # An escaped half of a surrogate pair is not a character; Spark would read it as ``?``.
    unpaired = f"regexp_replace({text}, {sql.text(_PAIRED)}, ' ') RLIKE {sql.text(_SURROGATE)}"
    some = " OR ".join(f"contains({text}, {sql.text(escape)})" for escape in (r"\ud", r"\uD"))
    return f"is_valid_utf8({text}) AND NOT (({some}) AND {unpaired})"


def is_inside(text: str) -> str:
    """Return whether a text stays inside of the array that :meth:`Reader.parsed` puts it into.

    The text ``{}],"x":[{}`` ends that array and begins another one.
    """
    ends = f"contains({text}, ']') AND {text} RLIKE {sql.text(_NEXT_PROPERTY)}"
    return f"NOT ({ends}) OR json_object_keys({_enclosed(text)}) = array('r', '{_OK}')"


def _enclosed(text: str) -> str:
    return f"""concat('{{"r":[', {text}, '],"{_OK}":true}}')"""


def _without_strings(text: str) -> str:
    """Return JSON text without its strings.

    Three steps, because Java matches a single pattern recursively.
    """
    escapes = (
        f"replace(replace({text}, {sql.text(chr(92) * 2)}, ''), {sql.text(chr(92) + chr(34))}, '')"
    )
    return f"""regexp_replace({escapes}, '"[^"]*"', '')"""


def _time(text: str) -> str:
    """Return a time of RFC 3339; null if it is not one, or not of the years 1 to 9999 in UTC.

    Digits beyond microseconds are dropped.
    """
    low, high = RANGES["timestamptz"]
    found = f"try_cast(upper({text}) AS timestamp)"
    return (
        f"if({text} RLIKE {sql.text(DATE_TIME)} AND "
        f"unix_millis({found}) BETWEEN {low} AND {high}, {found}, NULL)"
    )


def _like_another_type(text: str) -> str:
    """Return whether a value that ``from_json`` read as a string may have another type."""
    return _any(
        [
            f"{text} >= '-' AND {text} < ':' AND {text} RLIKE {sql.text(_NUMBER)}",
            f"startswith({text}, '{{') OR startswith({text}, '[')",
            f"{text} IN ('true', 'false')",
        ]
    )


def _is(variant: str, kind: str) -> str:
    return f"schema_of_variant({variant}) = '{kind}'"


def _is_number(variant: str) -> str:
    return f"schema_of_variant({variant}) RLIKE '^(BIGINT|DECIMAL|DOUBLE)'"


def _is_there(variant: str) -> str:
    return f"({variant} IS NOT NULL AND NOT is_variant_null({variant}))"


def _object(variant: str) -> str:
    """Return a variant's properties; null: it is not an object."""
    return f"try_variant_get({variant}, '$', 'map<string,variant>')"


def _array(variant: str) -> str:
    return f"try_variant_get({variant}, '$', 'array<variant>')"


def _at(fields: str, name: str) -> str:
    return f"{fields}[{sql.text(name)}]"


def _placed(plan: Plan, member: Member, value: str) -> str:
    """Return the union's value of a member's value."""
    if member.place is None:
        return f"CAST(NULL AS {sql.spark_type(plan.column)})"
    if member.place == "":
        return value
    assert isinstance(plan.column, StructType)  # noqa: S101  it has places
    return sql.row(plan.column, {member.place: value})


def _declares(fields: str, node: Node) -> str:
    """Return whether a member of a union declares all properties of an object."""
    if node.kind != "struct":
        return "true"
    names = ", ".join(sql.text(name) for name in node.children)
    return f"coalesce(forall(map_keys({fields}), x -> x IN ({names})), true)"


def _discriminated(variant: str, fields: str, node: Node) -> str:
    """Return whether a value has what a member of a union requires besides types."""

    def one_of(value: str, texts: Iterable[str]) -> str:
        return f"to_json({value}) IN ({', '.join(map(sql.text, texts))})"

    found: list[str] = []
    if node.constants and node.kind in COMPARED:
        found.append(one_of(variant, node.texts))
    if node.kind == "struct":
        found += [f"{_at(fields, name)} IS NOT NULL" for name in sorted(node.required)]
        found += [
            # Null is accepted, as everywhere: the schema may allow it beside the constants.
            f"coalesce({one_of(_at(fields, name), ['null', *child.texts])}, true)"
            for name, child in node.children.items()
            if child.constants and child.kind in COMPARED
        ]
    return f"({' AND '.join(found)})" if found else "true"
