"""Erasure of rows from every file of a table: the current ones, and those that only history has."""

from topicberg.iceberg.erasure.locations import RowsToErase, data_files, find
from topicberg.iceberg.erasure.matching import Condition, Rows
from topicberg.iceberg.erasure.proof import Proof, prove
from topicberg.iceberg.erasure.run import READERS_SECONDS, Erased, PinnedError, erase
from topicberg.iceberg.erasure.search import HeldIn, fields_in_structs, find_column, search

__all__ = [
    "READERS_SECONDS",
    "Condition",
    "Erased",
    "HeldIn",
    "PinnedError",
    "Proof",
    "Rows",
    "RowsToErase",
    "data_files",
    "erase",
    "fields_in_structs",
    "find",
    "find_column",
    "prove",
    "search",
]
