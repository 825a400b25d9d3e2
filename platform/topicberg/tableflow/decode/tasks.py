"""Batches that tasks of Spark read: each task does for its part of the offsets what
:func:`topicberg.tableflow.decode.reading.ingest` does.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from topicberg.errors import TopicbergError, first_line
from topicberg.shipping.workers import code_version, on_worker, ship
from topicberg.tableflow.batch.failures import explain, is_of_service
from topicberg.tableflow.batch.sizing import FILE_RECORDS, usual_tasks
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.reading import WrittenBatch, joined, outcome
from topicberg.tableflow.values.compiling import wait_ready
from topicberg.tableflow.values.memory import lacking_memory

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from topicberg.kafka.offsets import Ranges

TASK_BYTES = 128 * 1024 * 1024
"""What one task reads, or :data:`.sizing.FILE_RECORDS`; of a partitioned table twice as much, as
each writes its files."""
MAX_TASKS = 256


@dataclass(frozen=True, repr=False)
class Task:
    """What each task of Spark does: one part of the ranges, whose number is its input."""

    plan: ReadPlan
    parts: Sequence[Ranges]
    memory: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                done = pickle.dumps(outcome(self.plan, self.parts[number], self.memory))
                yield pa.RecordBatch.from_pydict({"outcome": pa.array([done], pa.binary())})


def ingest_by_spark(
    spark: SparkSession,
    plan: ReadPlan,
    table: Table,
    ranges: Ranges,
    size: float | None,
    memory: int,
) -> WrittenBatch:
    """Do :func:`ingest` by tasks of Spark.

    :param size: average bytes of a record; None: not known
    :param memory: bytes that a task may take for its records
    :raises PySparkException: a task ended without an outcome
    """
    parts = split(ranges, size, usual_tasks(table.spec()))
    numbers = spark.range(0, len(parts), 1, len(parts))
    done = numbers.mapInArrow(on_worker(Task(plan, parts, memory)), "outcome binary").toArrow()
    outcomes = [pickle.loads(text) for text in done.column(0).to_pylist()]  # noqa: S301  our tasks'
    return joined(plan, table.io, outcomes)


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


def check_workers(spark: SparkSession, memory: int) -> bool:
    """Check that tasks of Spark can read batches, by one that does nothing.

    If the workers lack topicberg, it is sent to them.

    :param memory: bytes that a task may take for its records
    :return: whether it was sent: the workers of other sessions lack it as well
    :raises TopicbergError: they cannot read batches, or Spark does not answer
    """
    if not _lack(spark, memory):
        return False
    from pyspark.errors import PySparkException

    try:
        ship(spark)
        lack = _lack(spark, memory)
    except PySparkException as error:
        if is_of_service(error):
            raise explain("Spark", error) from error
        lack = f"they have no topicberg, and Spark does not take it: {first_line(error)[:300]}"
    if lack:
        raise TopicbergError(
            f"the workers of Spark cannot read batches: {lack}",
            hint="see docs/production.md, Spark, for what workers need",
        )
    return True


def _lack(spark: SparkSession, memory: int) -> str:
    from pyspark.errors import PySparkException

    probe = on_worker(WorkerProbe(code_version(), pa.__version__, memory))
    try:
        done = spark.range(0, 1, 1, 1).mapInArrow(probe, "reason string").toArrow()
    except PySparkException as error:
        if is_of_service(error):
            raise explain("Spark", error) from error
        return _reason_of_worker(str(error))
    (reason,) = done.column(0).to_pylist()
    return str(reason)


def _reason_of_worker(text: str) -> str:
    """Return what a worker's Python said last, without the stack."""
    of_python = re.findall(r"^\s*((?:[\w.]+Error|[\w.]+Exception): .+)$", text, re.MULTILINE)
    lines = of_python or text.strip().splitlines() or ["it says no reason"]
    return str(lines[0])[:300]


def split(ranges: Ranges, size: float | None, tasks: int = 1) -> list[Ranges]:
    """Return parts of about the same number of offsets.

    :param tasks: so many usual tasks are one
    """
    total = sum(end - start for start, end in ranges.values())
    wanted = max(total / FILE_RECORDS, total * (size or 0) / TASK_BYTES) / tasks
    count = max(1, min(MAX_TASKS, round(wanted)))
    most = -(-total // count)
    parts: list[dict[int, tuple[int, int]]] = [{}]
    room = most
    for partition, (start, end) in ranges.items():
        while start < end:
            if not room:
                parts.append({})
                room = most
            till = min(end, start + room)
            parts[-1][partition] = start, till
            room -= till - start
            start = till
    return list(parts)
