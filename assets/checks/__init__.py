"""Asset checks: for every table those of :mod:`topicberg.checks`, and those of its author.

The checks of one asset are one operation, which loads its table once, or part of the operation that
its asset shares with others (:mod:`assets.sharing`). They run every few minutes in
the job ``check_tables``, and in each run that a sensor requests; there, rules that are not blocking
read no rows. A blocking check that fails prevents the computation of what is downstream.

For a check of your own, see docs/checks.md.
"""

from __future__ import annotations

from assets.checks.adapter import (
    COMPUTATION,
    KIND,
    REGISTRATION,
    check_specs,
    evaluation,
    lake_checks,
    result,
)
from assets.checks.catalogue import CheckKeys
from assets.checks.evaluations import (
    Evaluation,
    finding_of,
    last_evaluations,
)

__all__ = [
    "COMPUTATION",
    "KIND",
    "REGISTRATION",
    "CheckKeys",
    "Evaluation",
    "check_specs",
    "evaluation",
    "finding_of",
    "lake_checks",
    "last_evaluations",
    "result",
]
