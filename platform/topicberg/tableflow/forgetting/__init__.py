"""Erase the rows of one key from the tables of a topic, and its records from a compacted topic."""

from topicberg.tableflow.forgetting.candidates import (
    Candidate,
    chosen_columns,
    find_candidates,
)
from topicberg.tableflow.forgetting.key import Key
from topicberg.tableflow.forgetting.records import KeyRecords
from topicberg.tableflow.forgetting.run import FORGOTTEN, ErasureTarget, Forgetting, Uncovered

__all__ = [
    "FORGOTTEN",
    "Candidate",
    "ErasureTarget",
    "Forgetting",
    "Key",
    "KeyRecords",
    "Uncovered",
    "chosen_columns",
    "find_candidates",
]
