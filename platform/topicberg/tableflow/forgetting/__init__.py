"""Erase the rows of one key from the tables of a topic, and its records from a compacted topic."""

from topicberg.tableflow.forgetting.key import Key
from topicberg.tableflow.forgetting.records import Records
from topicberg.tableflow.forgetting.run import FORGOTTEN, Forgetting, Target, Uncovered

__all__ = ["FORGOTTEN", "Forgetting", "Key", "Records", "Target", "Uncovered"]
