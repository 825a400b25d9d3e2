"""Partition values of floats and doubles in manifests, compared with the bounds of the files.

A reader takes the value of an identity partition from the manifest, so a wrong one changes rows,
and compaction writes it into files. PyIceberg up to 0.12 reads doubles as floats: whoever rewrites
manifests with it leaves 0.10000000149 for 0.1, and infinity for 1e300.

Source: Iceberg spec, "Manifest Entry Fields" and "Scan Planning".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from topicberg.iceberg.files import partition_key
from topicberg.iceberg.manifests import bounds_of


class PartitionColumn(NamedTuple):
    """A field of a partition spec and the column that it is computed from."""

    spec_id: int
    place: int
    transform: str
    """Without its ``[n]``."""
    kind: str
    """The column's type, without its precision."""


def partition_columns(table: Table) -> Iterator[PartitionColumn]:
    """Yield the fields of all partition specs whose columns a schema of the table has."""
    kinds = {n: f for schema in table.schemas().values() for n, f in index_by_id(schema).items()}
    for spec in table.specs().values():
        for place, field in enumerate(spec.fields):
            if (column := kinds.get(field.source_id)) is not None:
                names = str(field.transform).partition("[")[0], str(column.field_type)
                yield PartitionColumn(spec.spec_id, place, names[0], names[1].partition("(")[0])


def exact_partition(file: DataFile, spec: PartitionSpec) -> Record | None:
    """Return the partition that the bounds of a data file say; None: it is the file's.

    All rows of a file have the value of an identity partition, so both bounds are that value. The
    partition of -0.0 is that of 0.0.
    """
    values = [file.partition[place] for place in range(len(file.partition))]
    exact = list(values)
    for place, field in enumerate(spec.fields):
        if isinstance(values[place], float) and isinstance(field.transform, IdentityTransform):
            lower, upper = (_number(bound) for bound in bounds_of(file, field.source_id))
            if lower is not None and lower == upper:
                exact[place] = lower + 0.0
    return None if partition_key(exact) == partition_key(values) else Record(*exact)


def _number(bound: bytes | None) -> float | None:
    """Return a bound of a float, or of a double: that of a file may be the narrower one."""
    if bound is None:
        return None
    number: float = struct.unpack("<f" if len(bound) == 4 else "<d", bound)[0]
    return number
