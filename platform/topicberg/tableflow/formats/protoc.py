"""Protobuf schemas compiled, with Google's and Confluent's own files at hand for their imports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from topicberg.errors import TableflowError

_MAX_REASON = 200


@lru_cache(maxsize=256)
def compiled(name: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> Any:
    """The file's descriptor (google.protobuf), in a pool of its own.

    :param references: (name, text) of files that it imports, directly or not
    :raises TableflowError: protoc refuses it; the message has no file name of its own
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(_protoc(name, text, references)).file:
        pool.Add(file)
    return pool.FindFileByName(name)


def _protoc(name: str, text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """A FileDescriptorSet; protoc runs as a process, as it writes to its stderr."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in (*references, (name, text)):
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or "\0" in file:
                raise TableflowError(f"{file!r} is not the name of a file to import")
            source = Path(folder) / path
            try:
                source.parent.mkdir(parents=True, exist_ok=True)
                source.write_text(content, encoding="utf-8")
            except (OSError, UnicodeEncodeError) as error:
                raise TableflowError(f"{file!r} cannot be written as a file: {error}") from None
        output, confluent = Path(folder) / ".descriptors", Path(folder) / ".confluent"
        confluent.write_bytes(_confluent_files())
        google = files("grpc_tools") / "_proto"
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc", "--include_imports"),
            *(f"--proto_path={path}" for path in (folder, google, _google_types())),
            f"--descriptor_set_in={confluent}",
            f"--descriptor_set_out={output}",
            name,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            complaints = done.stderr.replace(f"{folder}/", "").replace(f"{name}:", "").split("\n")
            reason = " ".join("; ".join(filter(None, complaints)).split())
            cut = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}…"
            raise TableflowError(cut, hint="compile the schema with protoc to see what it means")
        return output.read_bytes()


def _google_types() -> Path:
    """The folder above google/type: date.proto, timeofday.proto, money.proto, …"""
    from google.type import date_pb2

    return Path(date_pb2.__file__).parents[2]


@lru_cache(maxsize=1)
def _confluent_files() -> bytes:
    """confluent/meta.proto and confluent/type/decimal.proto, which come with Confluent's client."""
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2
    from google.protobuf import descriptor_pb2

    descriptors = descriptor_pb2.FileDescriptorSet()
    for file in (descriptor_pb2.DESCRIPTOR, meta_pb2.DESCRIPTOR, decimal_pb2.DESCRIPTOR):
        file.CopyToProto(descriptors.file.add())
    return bytes(descriptors.SerializeToString())
