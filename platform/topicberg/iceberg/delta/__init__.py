"""A Delta log over the Parquet files of an Iceberg table: no data is written twice.

:func:`sync` is the only entry point. See ``docs/delta.md`` for what it does and its limits.
"""

from topicberg.iceberg.delta.log import DeltaVersion, storage_options
from topicberg.iceberg.delta.sync import rebuild, sync

__all__ = ["DeltaVersion", "rebuild", "storage_options", "sync"]
