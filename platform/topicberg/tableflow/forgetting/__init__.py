"""Erase the rows of one key from the tables of a topic, and its records from a compacted topic."""

from topicberg.tableflow.forgetting.candidates import (
    Candidate,
    chosen_columns,
    find_candidates,
)
from topicberg.tableflow.forgetting.catch_up import CatchUp, Uncovered
from topicberg.tableflow.forgetting.key import Key
from topicberg.tableflow.forgetting.records import KeyRecords, write_tombstones
from topicberg.tableflow.forgetting.rows import KeyRows
from topicberg.tableflow.forgetting.run import FORGOTTEN, Forgetting
from topicberg.tableflow.forgetting.targets import ErasureTarget, topic_targets

__all__ = [
    "FORGOTTEN",
    "Candidate",
    "CatchUp",
    "ErasureTarget",
    "Forgetting",
    "Key",
    "KeyRecords",
    "KeyRows",
    "Uncovered",
    "chosen_columns",
    "find_candidates",
    "topic_targets",
    "write_tombstones",
]
