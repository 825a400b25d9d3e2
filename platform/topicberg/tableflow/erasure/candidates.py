"""Tables that follow from a topic in a way that nothing declares: which columns may hold the key.

A value alone proves nothing: a key 3 is also a quantity of 3. So the columns that hold it are
named, and erased only if the user says that they hold the key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from pyiceberg.table import Table

from topicberg.errors import SpecError
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.locations import file_batches
from topicberg.tableflow.erasure.matching import ColumnPath, Rows, fields_in_structs
from topicberg.wording import suggestion


@dataclass(frozen=True)
class Candidate:
    """A column that holds the value of a column of the key."""

    table: str
    column: str  # ``a.b`` in a struct.
    option: str  # What ``--column`` takes to erase by it.
    rows: int
    files: int


def find_candidates(
    name: str, table: Table, key: Key, is_searched: Callable[[str], bool]
) -> tuple[Candidate, ...]:
    """Return the columns of a table that may hold the key; none if a column of the key has none.

    :param name: of the table, for messages
    :param is_searched: whether to search a column, by the name of the outermost one
    """
    columns = [
        (path, kind)
        for path, kind in fields_in_structs(table.schema().fields)
        if kind.is_primitive and is_searched(path[0])
    ]
    candidates = []
    for field in key.fields:
        values = {path: key.as_found_in(field.name, kind) for path, kind in columns}
        counts = search(table, {path: some for path, some in values.items() if some})
        if not counts:
            return ()
        for path, (rows, files) in counts.items():
            column = ".".join(path)
            option = f"{name}.{column}" + (f"={field.name}" if len(key.fields) > 1 else "")
            candidates.append(Candidate(name, column, option, rows, files))
    return tuple(candidates)


def search(
    table: Table, values: Mapping[ColumnPath, Sequence[Any]]
) -> dict[ColumnPath, tuple[int, int]]:
    """Return the columns that hold one of their values → in how many rows and files of the table.

    :param values: column → what to look for in it
    :raises TopicbergError: a file cannot be read
    """
    wanted = {path: Rows(table.schema(), ({path: some},)) for path, some in values.items()}
    in_files: dict[ColumnPath, Counter[str]] = {path: Counter() for path in wanted}
    for file, batch in file_batches(table, {path[0] for path in wanted}) if wanted else ():
        for path, rows in wanted.items():
            in_files[path][file] += int(np.count_nonzero(rows.among(batch)))
    totals = {path: (files.total(), len(+files)) for path, files in in_files.items()}
    return {path: total for path, total in totals.items() if total[0]}


def chosen_columns(
    options: Iterable[str], tables: Iterable[str], key: Key
) -> dict[str, list[Mapping[str, str]]]:
    """Return table → what the values of ``--column`` say of it: column of the key → its column.

    :param tables: names of the tables that the user may choose from
    :raises SpecError: an option names none of them, or not all columns of the key
    """
    names, known = [field.name for field in key.fields], sorted(tables)
    chosen: dict[str, dict[str, list[str]]] = {}
    for option in options:
        text, equals, of_key = option.rpartition("=")
        if not equals or of_key not in names:
            text, of_key = option, names[0]
        owners = [each for each in known if text.startswith(f"{each}.")]
        if not owners or (text == option and len(names) > 1):
            form = "TABLE.COLUMN=COLUMN_OF_THE_KEY" if len(names) > 1 else "TABLE.COLUMN"
            raise SpecError(
                f"--column {option}: expected {form} of a table that is derived from the topic"
                f"{suggestion(text.partition('.')[0], known)}",
                hint=f"name one of {', '.join(known)}" if known else "leave --column out",
            )
        owner = max(owners, key=len)
        columns = chosen.setdefault(owner, {name: [] for name in names})
        columns[of_key].append(text[len(owner) + 1 :])
    for owner, columns in chosen.items():
        if missing := [name for name, given in columns.items() if not given]:
            raise SpecError(
                f"--column: table {owner} has no column for {', '.join(missing)} of the key",
                hint=f"add --column {owner}.COLUMN={missing[0]}",
            )
    return {
        owner: [dict(zip(names, way, strict=True)) for way in product(*columns.values())]
        for owner, columns in chosen.items()
    }
