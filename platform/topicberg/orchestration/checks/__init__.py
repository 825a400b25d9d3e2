"""Asset checks: for every table those of :mod:`topicberg.checks`, and those of its author.

The checks of one asset are one operation, which loads its table once, or part of the operation that
its asset shares with others (:mod:`.assets.sharing`). They run every few minutes in
the job ``check_tables``, and in each run that a sensor requests; there, rules that are not blocking
read no rows. A blocking check that fails prevents the computation of what is downstream.

For a check of your own, see docs/checks.md.
"""
