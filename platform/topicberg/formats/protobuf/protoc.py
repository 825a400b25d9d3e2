"""Compiles Protobuf schemas; Google's and Confluent's own files are available to imports."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from functools import lru_cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from topicberg.errors import TableflowError
from topicberg.formats.limits import remembered
from topicberg.formats.reasons import quoted

_MAX_REASON = 200
_BASE64 = re.compile(r"[A-Za-z0-9+/]{4,}={0,2}")
_LOGGED = re.compile(r"[IWEF][0-9]{4} |WARNING: All log messages before ")
"""A line of protoc's log, such as that a file without ``syntax`` is read as proto2."""
SECONDS, MEMORY = 10, 1024 * 1024 * 1024  # Limits of one run of protoc.
_LIMITED = f"""
import resource, sys
for what, most in (("AS", {MEMORY}), ("CPU", {SECONDS}), ("CORE", 0)):
    try:
        resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
    except (ValueError, OSError):  # a system without it, or a smaller limit
        pass
sys.path.append(sys.argv[1])
from grpc_tools import _protoc_compiler
sys.exit(_protoc_compiler.run_main([word.encode() for word in sys.argv[1:]]))
"""
"""What ``grpc_tools.protoc`` does, but for its imports: 11 ms of CPU time a schema, not 33."""


@remembered
def compiled(name: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return the file's descriptor (google.protobuf), in a pool of its own, or TableflowError.

    :param references: (name, text) of files that it imports, directly or not
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    files_found = FileDescriptorSet.FromString(_protoc(name, text, references)).file
    try:
        for file in files_found:
            pool.Add(file)
        return pool.FindFileByName(name)
    except (TypeError, KeyError) as error:  # e.g. a message that is too large for the runtime
        raise TableflowError(" ".join(str(error).split())[:_MAX_REASON]) from None


def _protoc(name: str, text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """Return a FileDescriptorSet; protoc runs as a process, because it writes to its stderr."""
    from google.type import date_pb2  # beside date.proto, timeofday.proto, money.proto, …

    descriptors = _confluent_files()
    with tempfile.TemporaryDirectory() as folder:
        for file, content in (*references, (name, text)):
            if (descriptor := _descriptor(file, content)) is not None:
                descriptors += descriptor
                continue
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or "\0" in file:
                raise TableflowError(f"{file!r} is not the name of a file to import")
            source = Path(folder) / path
            try:
                source.parent.mkdir(parents=True, exist_ok=True)
                source.write_text(content, encoding="utf-8")
            except (OSError, UnicodeEncodeError) as error:
                raise TableflowError(f"{file!r} cannot be written as a file: {error}") from None
        output, given = Path(folder) / ".descriptors", Path(folder) / ".given"
        given.write_bytes(descriptors)
        tools = Path(str(files("grpc_tools")))
        paths = (folder, tools / "_proto", Path(date_pb2.__file__).parents[2])
        command = [
            *(sys.executable, "-I", "-S", "-c", _LIMITED, str(tools.parent), "--include_imports"),
            *(f"--proto_path={path}" for path in paths),
            *(f"--descriptor_set_in={given}", f"--descriptor_set_out={output}", name),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=3 * SECONDS
            )
        except subprocess.TimeoutExpired:
            raise _too_costly() from None
        if done.returncode < 0:  # killed, or ended by its memory limit
            raise _too_costly()
        if done.returncode:
            text = done.stderr.replace(f"{folder}/", "").replace(f"{name}:", "")
            complaints = [line for line in text.split("\n") if line and not _LOGGED.match(line)]
            hint = "compile the schema with protoc to see the full message"
            raise TableflowError(quoted("; ".join(complaints)), hint=hint)
        return output.read_bytes()


def _descriptor(name: str, text: str) -> bytes | None:
    """Return the set of a file that is not text but its descriptor in Base64; None: it is text. So
    does Confluent's client for Python register it, and a registry such as Apicurio returns what it
    got. Text of Protobuf has characters that Base64 has not.
    https://github.com/confluentinc/confluent-kafka-python/blob/master/src/confluent_kafka/schema_registry/common/protobuf.py"""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    if not _BASE64.fullmatch(text):
        return None
    try:
        file = FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    file.name = name
    # Sets one after the other are one set.
    return bytes(FileDescriptorSet(file=[file]).SerializeToString())


def _too_costly() -> TableflowError:
    return TableflowError(
        f"protoc needs more than {SECONDS} seconds or {MEMORY // 2**20} MB", hint="split the schema"
    )


@lru_cache(maxsize=1)
def _confluent_files() -> bytes:
    """Return confluent/meta.proto and confluent/type/decimal.proto of Confluent's client."""
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2
    from google.protobuf import descriptor_pb2

    descriptors = descriptor_pb2.FileDescriptorSet()
    for module in (descriptor_pb2, meta_pb2, decimal_pb2):
        module.DESCRIPTOR.CopyToProto(descriptors.file.add())
    return bytes(descriptors.SerializeToString())
