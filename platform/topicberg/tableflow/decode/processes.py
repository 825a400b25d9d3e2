"""Processes of the engine, and tasks of Spark, that read and decode batches in a limit of memory.

A record decides how much memory its row takes. If it is more than there is, a process says so or
ends; the engine, Spark and the batches of other topics go on.
"""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import wait
from typing import Any, cast

import numpy as np
import psutil
import pyarrow as pa

from topicberg.errors import TopicbergError
from topicberg.kafka.offsets import Ranges
from topicberg.shipping.workers import code_version
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.reading import Outcome, Source, WrittenBatch, joined, outcome
from topicberg.tableflow.values.compiling import wait_ready
from topicberg.tableflow.values.memory import ExhaustedError, lacking_memory

_LOOK_SECONDS = 0.2
"""How often a batch that runs checks whether it is abandoned."""
STILL_SECONDS = 60.0
"""One that works or waits for Kafka uses some of a processor in this time, also on a busy machine;
one that does not was stopped by a signal, or hangs."""


class ProcessEndedError(ExhaustedError):
    """The process that decoded a batch ended; perhaps the system ended it for its memory."""


class Processes:
    """The processes of one engine; each is started when it is needed. Safe to use by threads."""

    def __init__(self, most: int, memory: int) -> None:
        """:param memory: bytes that each of them may take for a batch"""
        self._most, self._memory = most, memory
        self._free = threading.BoundedSemaphore(most)
        self._idle: list[_Process] = []

    def ingest(
        self, plans: Sequence[ReadPlan], parts: Sequence[Source], check: Callable[[], None]
    ) -> list[WrittenBatch]:
        """Do :func:`.reading.ingest` in as many other processes at once as there may be.

        :param check: called now and then; if it raises, the batch ends
        :raises ExhaustedError: a part takes more memory than there is
        """
        from pyspark import cloudpickle

        tasks = [cloudpickle.dumps((plans, part)) for part in parts]  # type: ignore[no-untyped-call]
        with ThreadPoolExecutor(min(len(tasks), self._most)) as threads:
            return joined(plans, list(threads.map(lambda task: self._outcome(task, check), tasks)))

    def _outcome(self, task: bytes, check: Callable[[], None]) -> Outcome:
        try:
            with self._taken() as process:
                return cast("Outcome", process.run(task, check))
        except Exception as error:
            return error

    def check(self) -> None:
        """:raises TopicbergError: a process cannot decode what needs a part of its memory"""
        try:
            with self._taken() as process:
                problem = process.run(b"", lambda: None)
        except ExhaustedError as error:
            problem = error
        if problem is not None:
            raise TopicbergError(
                f"the processes of the engine cannot decode records: {problem}",
                hint=f"give the machine memory for processes of {self._memory // 1024**2} MB, see "
                "TOPICBERG_ENGINE_PROCESSES and TOPICBERG_ENGINE_PROCESS_MEMORY_MB; the engine "
                "tries again",
            )

    @contextmanager
    def _taken(self) -> Iterator[_Process]:
        with self._free:
            process = self._idle.pop() if self._idle else _Process(self._memory)
            try:
                yield process
            except BaseException:
                process.end()
                raise
            self._idle.append(process)

    def close(self) -> None:
        """End the processes that do nothing."""
        while self._idle:
            self._idle.pop().end()


@lru_cache
def shared(most: int, memory: int) -> Processes:
    """Return the processes of this process."""
    return Processes(most, memory)


class _Process:
    def __init__(self, memory: int) -> None:
        self._channel, other = socket.socketpair()
        with other:
            module, number = "topicberg.tableflow.decode.decoding_process", other.fileno()
            command = [sys.executable, "-m", module, str(number), str(memory)]
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)

    def run(self, task: bytes, check: Callable[[], None]) -> Any:
        """:raises ProcessEndedError: the process ended
        :raises TopicbergError: it stands still; who uses it has to end it
        """
        self._channel.settimeout(STILL_SECONDS)
        try:
            _send(self._channel, [task])
            used, since = self._used(), time.monotonic()
            while not wait([self._channel], _LOOK_SECONDS):
                check()
                if (now := self._used()) != used:
                    used, since = now, time.monotonic()
                elif time.monotonic() - since > STILL_SECONDS:
                    raise TimeoutError
            first, *others = _receive(self._channel)
        except TimeoutError:
            raise TopicbergError(
                f"the process {self._process.pid} that decodes the records stood still for "
                f"{STILL_SECONDS:.0f} s, so it was ended",
                hint="see whether a signal stops the processes of the engine; it tries again",
            ) from None
        except (EOFError, OSError) as error:
            code = self._process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit status {code}"
            raise ProcessEndedError(f"the process that decodes the records ended {how}") from error
        return pickle.loads(first, buffers=others)  # noqa: S301  from our own process

    def _used(self) -> float:
        """Return the seconds of a processor that it has used."""
        with suppress(psutil.Error):  # it ended, which its channel says
            times = psutil.Process(self._process.pid).cpu_times()
            return times.user + times.system
        return 0.0

    def end(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


def serve(channel: socket.socket, memory: int) -> None:
    """Do the work that the engine sends, until the engine ends."""
    with suppress(EOFError, ConnectionError):
        while True:
            (task,) = _receive(channel)
            work: tuple[Sequence[ReadPlan], Source] | None = pickle.loads(task) if task else None  # noqa: S301  from the engine
            answer = outcome(*work, memory) if work else lacking_memory(memory)
            # Arrays are sent as they are, not as a part of the pickle: they would be copied.
            arrays: list[pickle.PickleBuffer] = []
            text = pickle.dumps(answer, 5, buffer_callback=arrays.append)
            _send(channel, [text, *(array.raw() for array in arrays)])


def _send(channel: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    sizes = [len(parts), *map(len, parts)]
    channel.sendall(struct.pack(f"<{len(sizes)}Q", *sizes))
    for part in parts:
        channel.sendall(part)


def _receive(channel: socket.socket) -> list[memoryview]:
    """:raises EOFError: the other side ended"""

    def read(size: int) -> memoryview:
        buffer, offset = np.empty(size, np.uint8).data, 0
        while offset < size:
            if not (got := channel.recv_into(buffer[offset:])):
                raise EOFError
            offset += got
        return buffer

    (count,) = struct.unpack("<Q", read(8))
    return [read(size) for size in struct.unpack(f"<{count}Q", read(8 * count))]


@dataclass(frozen=True, repr=False)
class Task:
    """What each task of Spark does: one part of the ranges, whose number is its input."""

    plans: Sequence[ReadPlan]
    parts: Sequence[Ranges]
    memory: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                done = pickle.dumps(outcome(self.plans, self.parts[number], self.memory))
                yield pa.RecordBatch.from_pydict({"outcome": pa.array([done], pa.binary())})


@dataclass(frozen=True)
class WorkerProbe:
    """A task that says why its worker cannot read batches; nothing: it can."""

    code: str
    pyarrow: str
    memory: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"reason": pa.array([self._reason()] * len(batch))})

    def _reason(self) -> str:
        if int(pa.__version__.split(".")[0]) < int(self.pyarrow.split(".")[0]):
            return f"they have PyArrow {pa.__version__}, the engine has {self.pyarrow}"
        if code_version() != self.code:
            return "they have another version of topicberg than the engine"
        try:
            wait_ready()
        except TopicbergError as error:
            return error.message
        problem = lacking_memory(self.memory)
        return "" if problem is None else problem.message
