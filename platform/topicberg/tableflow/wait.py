"""Wait until a table holds what its topic held."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topicberg.tableflow.commit import committed
from topicberg.tableflow.offsets import Offsets

if TYPE_CHECKING:
    from pyiceberg.table import Table

POLL_SECONDS = 1.0


def wait_for(
    table: Table,
    target: Offsets,
    patience: float,
    on_progress: Callable[[int], None] = lambda _: None,
) -> bool:
    """Refresh the table until it holds the topic up to ``target``.

    :param patience: seconds without any progress after which to give up
    :param on_progress: called with the number of records still missing
    :returns: False: no progress for ``patience`` seconds
    """
    best: int | None = None
    deadline = time.monotonic() + patience
    while True:
        held = committed(table.refresh()).offsets
        missing = sum(max(0, offset - held.get(p, 0)) for p, offset in target.items())
        if missing == 0:
            return True
        if best is None or missing < best:
            on_progress(missing)
            best, deadline = missing, time.monotonic() + patience
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
