"""What each process of the tests runs first: it looks for garbage seldom, and not when it ends.

Processes that live for seconds import Dagster and Spark, which stay: looking for garbage in them
took a tenth of the whole time of the tests.

Source: Python, ``site``: a module ``sitecustomize`` in ``PYTHONPATH`` is imported at the start.
"""

from __future__ import annotations

import atexit
import gc

gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)
