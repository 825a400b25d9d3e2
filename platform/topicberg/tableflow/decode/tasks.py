"""Batches that tasks of Spark read: each task does for its part of the offsets what
:func:`topicberg.tableflow.decode.reading.ingest` does.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from topicberg.errors import TopicbergError
from topicberg.kafka.offsets import Ranges
from topicberg.shipping.workers import code_version
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.reading import outcome
from topicberg.tableflow.values.compiling import wait_ready
from topicberg.tableflow.values.memory import lacking_memory


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
