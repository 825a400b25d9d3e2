"""The reference decoder of JSON records: a row, or the reason why there is none.

A record is JSON as in RFC 8259, in UTF-8, and each of its values is of its schema's type. Its
numbers have the value that their digits say, however they are written: ``1.0`` and ``1e0`` are the
integer 1. Of a repeated name, the last value is used. Reading follows the plan of a writer's
records (:mod:`.plan`): there is one function for each kind of values, which returns the function
that reads such a value, with all that can be known of it in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from pyiceberg import types as T

from topicberg.formats.contract import RecordDecoder
from topicberg.formats.json.columns import Node
from topicberg.formats.json.conversions import TEXT_FROM_ANY, converting
from topicberg.formats.json.matching import EXACT, Match, Matcher, matcher, one_of
from topicberg.formats.json.plan import COMPARED, JsonMember, JsonPlan, in_order_for_text
from topicberg.formats.json.scalars import Read, ScalarMisfitError, scalar, unexpected_in
from topicberg.formats.json.syntax import Texts, here, parsed, quoted, text_of
from topicberg.formats.reasons import MalformedError, shortened

_OPENED = {"{": "an object", "[": "an array", '"': "a string", "n": "null"}
_MIN_STEPS, _STEPS = 1_000_000, 8
"""The most values that the unions of a record look at, and more of them for each character."""


def decoder(plan: JsonPlan, wrapped_as: str | None, unknown_as: str | None = None) -> RecordDecoder:
    """Return what decodes the records of a plan.

    :param wrapped_as: a record is the value of this property, of the only one
    :param unknown_as: the column with the JSON text of what has no other one
    """
    whole = plan if wrapped_as is None else plan.children.get(wrapped_as)
    read: Any = None
    if whole is plan and plan.kind == "struct":
        read = _struct(plan, in_union=False, is_whole=True)
    elif whole is not None:
        read = _reader(whole)
    needs_texts = unknown_as is not None or (whole is not None and _has_text(whole))

    def decode(payload: bytes) -> dict[str, Any]:
        value, here.steps = parsed(payload), _MIN_STEPS + _STEPS * len(payload)
        if needs_texts:
            here.texts = Texts(payload)
            value = here.texts.value
        here.container, here.place = None, None
        try:
            if wrapped_as is not None:
                return {} if value is None or read is None else {wrapped_as: read(value)}
            row: dict[str, Any] = read(value)
            if unknown_as is not None and (rest := unknown(plan, value)) is not None:
                row[unknown_as] = rest
            return row
        except ScalarMisfitError as misfit:
            if wrapped_as is not None:
                misfit.path.append(wrapped_as)
            raise MalformedError(str(misfit)) from None
        finally:
            here.texts = None

    return decode


def _has_text(plan: JsonPlan) -> bool:
    """Return whether the JSON text of a value is read somewhere."""
    if plan.kind == "json" or TEXT_FROM_ANY in plan.node.conversions:
        return True
    return any(map(_has_text, (*plan.children.values(), *(m.plan for m in plan.members))))


def unknown(plan: JsonPlan, value: Any) -> str | None:
    """Return the JSON text of what of a value has no column, in its place; None: it is nothing."""
    children = plan.children
    match plan.kind:
        case "struct" if isinstance(value, dict):
            return _rests(children, value)
        case "list" if isinstance(value, list):
            return _array([unknown(children["element"], element) for element in value])
        case "map" if isinstance(value, dict):
            return _rests(dict.fromkeys(value, children["value"]), value)
        case "entries" if isinstance(value, list):
            return _array([_rests(children, entry) for entry in value])
    return None


def _array(rests: Sequence[str | None]) -> str | None:
    if all(rest is None for rest in rests):
        return None
    return f"[{','.join('null' if rest is None else rest for rest in rests)}]"


def _rests(children: Mapping[str, JsonPlan], value: dict[str, Any]) -> str | None:
    def rest(name: str, inner: Any) -> str | None:
        if name in children:
            return unknown(children[name], inner)
        here.container, here.place = value, name
        return text_of(inner)

    rests = ((name, rest(name, inner)) for name, inner in value.items())
    pieces = [f"{quoted(name)}:{text}" for name, text in rests if text is not None]
    return f"{{{','.join(pieces)}}}" if pieces else None


def _reader(plan: JsonPlan, *, in_union: bool = False) -> Read:
    """:param in_union: the value may be read again, as another member of a union"""
    match plan.kind:
        case "struct":
            read = _struct(plan, in_union)
        case "list":
            read = _list(plan, in_union)
        case "map":
            read = _map(plan, in_union)
        case "entries":
            read = _entries(plan, in_union)
        case "union":
            read = _union(plan)
        case "json":
            read = _json(plan, in_union)
        case _:
            read = converting(scalar(plan, in_union=in_union), plan)
    return _counted(read) if in_union else read


def _counted(read: Read) -> Read:
    def counted(value: Any) -> Any:
        here.take(1 + (len(value) if isinstance(value, list | dict | str) else 0))
        return read(value)

    return counted


def _struct(plan: JsonPlan, in_union: bool, is_whole: bool = False) -> Read:
    """:param is_whole: it is a record, whose row lacks the columns that are null"""
    empty = dict[str, Any].fromkeys(() if is_whole else (f.name for f in plan.column.fields))
    readers = {name: _reader(child, in_union=in_union) for name, child in plan.children.items()}
    reader_of, unexpected = readers.get, unexpected_in(plan)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise unexpected(value)
        row, name = empty.copy(), ""
        try:
            for name, inner in value.items():
                if inner is not None and (read_inner := reader_of(name)) is not None:
                    here.container, here.place = value, name
                    row[name] = read_inner(inner)
        except ScalarMisfitError as misfit:
            misfit.path.append(f".{name}")
            raise
        return row

    return read


def _list(plan: JsonPlan, in_union: bool) -> Read:
    element, unexpected = _reader(plan.children["element"], in_union=in_union), unexpected_in(plan)

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise unexpected(value)
        elements: list[Any] = []
        try:
            for inner in value:
                here.container, here.place = value, len(elements)
                elements.append(None if inner is None else element(inner))
        except ScalarMisfitError as misfit:
            misfit.path.append(f"[{len(elements)}]")
            raise
        return elements

    return read


def _map(plan: JsonPlan, in_union: bool) -> Read:
    read_value, unexpected = _reader(plan.children["value"], in_union=in_union), unexpected_in(plan)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise unexpected(value)
        pairs: list[tuple[str, Any]] = []
        name = ""
        try:
            for name, inner in value.items():
                here.container, here.place = value, name
                pairs.append((name, None if inner is None else read_value(inner)))
        except ScalarMisfitError as misfit:
            misfit.path.append(f"[{shortened(name)}]")
            raise
        return pairs

    return read


def _entries(plan: JsonPlan, in_union: bool) -> Read:
    """Return what reads an array of objects with key and value as a map."""
    readers = {name: _reader(plan.children[name], in_union=in_union) for name in ("key", "value")}
    column, unexpected = plan.column, unexpected_in(plan)

    def part(entry: dict[str, Any], name: str) -> Any:
        if (inner := entry.get(name)) is None:
            return None
        here.container, here.place = entry, name
        try:
            return readers[name](inner)
        except ScalarMisfitError as misfit:
            misfit.path.append(f".{name}")
            raise

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise unexpected(value)
        by_key: dict[Any, Any] = {}
        number = 0
        try:
            for number, entry in enumerate(value):  # noqa: B007  the path has it
                if type(entry) is not dict:
                    raise ScalarMisfitError(
                        column, "an object with key and value expected, ", entry, " found"
                    )
                if (key := part(entry, "key")) is None:
                    raise ScalarMisfitError(column, "the key is missing in ", entry)
                by_key[key] = part(entry, "value")
        except ScalarMisfitError as misfit:
            misfit.path.append(f"[{number}]")
            raise
        return list(by_key.items())

    return read


def _union(plan: JsonPlan) -> Read:
    """Return what reads a value as the member that has all of it. That is the first one whose
    schema allows the value and declares all of it, at every depth. Without such a member, it is the
    one that loses the least of the value. A value that no schema allows is one of the members that
    can read it: the first that declares all its properties, else the first."""
    by_id, column = {id(member): _member(plan, member) for member in plan.members}, plan.column
    members = list(by_id.values())
    members_for_text = [by_id[id(member)] for member in in_order_for_text(plan.members)]

    def read(value: Any) -> Any:
        misfits: list[ScalarMisfitError] = []
        allowed: list[tuple[Match, _Member, Any]] = []
        others: list[tuple[_Member, Any]] = []
        for member in members_for_text if type(value) is str else members:
            here.take(1)
            try:
                if not member.is_accepted(value):
                    lacks = " lacks what the schema requires"
                    raise ScalarMisfitError(column, "value ", value, lacks)
                stored = member.read(value)
            except ScalarMisfitError as misfit:
                misfits.append(misfit)
                continue
            if (match := member.match(value)) == EXACT:
                return member.place(stored, value)
            if match is None:
                others.append((member, stored))
            else:
                allowed.append((match, member, stored))
        if allowed:
            _, member, stored = min(allowed, key=itemgetter(0))
            return member.place(stored, value)
        if others:
            declaring = (candidate for candidate in others if candidate[0].declares(value))
            member, stored = next(declaring, others[0])
            return member.place(stored, value)
        if len(misfits) == 1:
            raise misfits[0]
        raise ScalarMisfitError(column, "value ", value, f" is none of its {len(misfits)} types")

    return read


class _Member(NamedTuple):
    """``is_accepted``: whether a value may be the member. ``place``: where its stored value goes.
    ``declared``: the properties of an object; None: it is none.
    """

    is_accepted: Callable[[Any], bool]
    read: Read
    match: Matcher
    declared: frozenset[str] | None
    place: Callable[[Any, Any], Any]

    def declares(self, value: Any) -> bool:
        return self.declared is None or value.keys() <= self.declared


def _member(plan: JsonPlan, member: JsonMember) -> _Member:
    node = member.plan.node
    fields = plan.column.fields if isinstance(plan.column, T.StructType) else ()
    empty: dict[str, Any] = dict.fromkeys(field.name for field in fields)
    kind = node.name or member.plan.kind

    def place(stored: Any, value: Any) -> Any:
        if member.place == "":
            return stored
        if member.place is None:
            raise ScalarMisfitError(plan.column, "value ", value, f" is a {kind}, without a column")
        return {**empty, member.place: stored}

    return _Member(
        _accepting(node),
        _reader(member.plan, in_union=True),
        matcher(node, here.take) if len(plan.members) > 1 else lambda _: EXACT,
        frozenset(node.children) if node.kind == "struct" else None,
        place,
    )


def _accepting(node: Node) -> Callable[[Any], bool]:
    """Return whether a value has what a member of a union requires besides types."""
    if node.kind != "struct":
        return _one_of(node) or (lambda _: True)
    checks = [(n, check) for n, child in node.children.items() if (check := _one_of(child))]

    def accepts(value: Any) -> bool:
        # Null is accepted, as everywhere: the schema may allow it beside the constants.
        return (
            type(value) is dict
            and value.keys() >= node.required
            and all((inner := value.get(name)) is None or check(inner) for name, check in checks)
        )

    return accepts


def _one_of(node: Node) -> Callable[[Any], bool] | None:
    """Return whether a value is one of the schema's constants; None: any value is."""
    return one_of(node.constants) if node.constants and node.kind in COMPARED else None


def _json(plan: JsonPlan, in_union: bool) -> Read:
    """Return what reads any value as JSON text, as it stands in the record."""
    opening = plan.node.opening
    expected = " or ".join(_OPENED[mark] for mark in opening)

    def read(value: Any) -> Any:
        text = text_of(value)
        if opening and text[0] not in opening:
            raise ScalarMisfitError(plan.column, f"{expected} expected, ", value, " found")
        if in_union:
            here.take(len(text))
        return text

    return read
