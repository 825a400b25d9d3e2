"""Files of Protobuf: their messages, and the message that a table has."""

from __future__ import annotations

from itertools import count
from typing import Any

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.protobuf import protoc
from topicberg.formats.subjects import RegisteredSchema

_FILE = "schema.proto"


def file_of(where: str, schema: RegisteredSchema) -> Any:
    limits.check_size(where, schema)
    names = {name for name, _ in schema.references}
    files = (f"{'topicberg/' * folders}{_FILE}" for folders in count())
    file = next(name for name in files if name not in names)
    try:
        return protoc.compiled(file, schema.text, schema.references)
    except TableflowError as error:
        raise TableflowError(f"{where} is not Protobuf: {error.message}", hint=error.hint) from None


def root_message(where: str, schema: RegisteredSchema, message: str | None) -> Any:
    """Return the descriptor of the message that defines the table."""
    file = file_of(where, schema)
    if not (types := list(file.message_types_by_name.values())):
        raise TableflowError(
            f"{where} defines no message", hint="define a message: its fields become columns"
        )
    if message is None:
        return types[0]
    if (descriptor := _named(file, message.removeprefix(f"{file.package}."))) is None:
        names = ", ".join(message_type.name for message_type in types)
        raise TableflowError(f"{where} has no message {message}; there are {names}")
    return descriptor


def target_message(schema: RegisteredSchema, message: str | None) -> Any:
    return root_message(schema.label, schema, message)


def _named(file: Any, name: str) -> Any:
    """Return a message by its name in the file (``Outer.Inner``), or None."""
    first, *inner = name.split(".")
    descriptor = file.message_types_by_name.get(first)
    for part in inner:
        descriptor = descriptor and descriptor.nested_types_by_name.get(part)
    return descriptor


def same_message(where: str, file: Any, message: Any) -> Any:
    """Return the message of that name in another version of the file, or the renamed message.

    A renamed message is the one in the same place, if each of the two names is in only one of the
    versions: a message that both versions have was moved, and is another type.
    """
    name = message.full_name.removeprefix(f"{message.file.package}.")
    if descriptor := _named(file, name):
        return descriptor
    types: Any = list(file.message_types_by_name.values())
    descriptor = None
    for index in indexes_of(message):
        descriptor = types[index] if index < len(types) else None
        if descriptor is None:
            break
        types = descriptor.nested_types
    if descriptor is None or _named(
        message.file, descriptor.full_name.removeprefix(f"{file.package}.")
    ):
        raise TableflowError(
            f"{where} has no message {name}",
            hint="name the topic's message type in its spec, or produce with a schema that has it",
        )
    return descriptor


def indexes_of(message: Any) -> list[int]:
    """Return the message indexes: the message's place in its parent, after the parent's indexes."""
    around = message.containing_type
    beside = around.nested_types if around else message.file.message_types_by_name.values()
    index = [sibling.full_name for sibling in beside].index(message.full_name)
    return [*(indexes_of(around) if around else ()), index]


def index_prefixes(path: list[int]) -> tuple[bytes, ...]:
    """Return the encodings of message indexes: zig-zag varints after their count; [0] also as 0."""
    full = b"".join(_varint(2 * number) for number in (len(path), *path))
    return (b"\x00", full) if path == [0] else (full,)


def glue_messages(file: Any) -> list[Any]:
    """Return all messages of a file, of every depth and those of maps, by their full names. Source:
    ``MessageIndexFinder`` (Java) of AWS Glue Schema Registry."""
    messages, rest = list[Any](), list(file.message_types_by_name.values())
    while rest:
        messages += rest
        rest = [inner for message in rest for inner in message.nested_types]
    return sorted(messages, key=lambda message: str(message.full_name))


def glue_index(message: Any) -> bytes:
    """Return a message's index as AWS Glue's ``ProtobufWireFormatEncoder`` (Java) writes it."""
    names = [message_type.full_name for message_type in glue_messages(message.file)]
    return _varint(names.index(message.full_name))


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
