"""Checks of one's own on the tables of topics, and on any others: functions of the project.

In a module that ``pipelines`` of ``[tool.topicberg]`` names::

    @table_check("orders")
    def amounts_are_positive(tables: Tables) -> dg.AssetCheckResult:
        "No order has a negative amount."
        wrong = tables.sql("SELECT order_id FROM orders WHERE amount < 0").num_rows
        return dg.AssetCheckResult(passed=wrong == 0, description=f"{wrong:,} are negative")

It becomes the check ``amounts_are_positive`` of ``iceberg/orders``. It is evaluated when one of its
tables has another snapshot, or its code changed; else the last result is repeated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import dagster as dg

from topicberg.checks.check import Probe, TableCheck
from topicberg.checks.finding import Finding, good
from topicberg.checks.rules import VERDICT, covering, repeated
from topicberg.errors import SpecError, TopicbergError, line_in, safe
from topicberg.errors.meaning import classify
from topicberg.orchestration.assets.derived import NAME, source_file
from topicberg.orchestration.checks.evaluations import finding_of
from topicberg.orchestration.resources.tables import TableName, Tables
from topicberg.project import members
from topicberg.settings import Settings
from topicberg.transforms.code import code_version

EVALUATED = "evaluated"  # Fact of a finding: the code and the snapshots that it is about.
CheckFunction = Callable[[Tables], dg.AssetCheckResult | bool]


@dataclass(frozen=True)
class OwnCheck:
    """A check as its author describes it; :func:`table_check` makes one."""

    tables: tuple[str, ...]  # What it reads; the first is the one whose asset has the check.
    function: CheckFunction
    blocking: bool
    always: bool

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        """The file of its function, from the project's root."""
        return source_file(self.function)


def table_check(
    table: str, *others: str, blocking: bool = False, always: bool = False
) -> Callable[[CheckFunction], OwnCheck]:
    """Make a function a check of a table, with its name and its docstring.

    The function gets a :class:`topicberg.Tables` that reads the named tables, and returns a
    ``dagster.AssetCheckResult``, or whether the check passes. Its description, and its metadata
    ``remediation``, ``since`` and ``caused by`` are in the alert. What it raises fails the check,
    with the line of the error; if a service does not answer, it is evaluated again.

    :param table: a topic, a derived table, or another table of the graph
    :param others: further tables that the function reads
    :param blocking: whether a failure prevents the computation of what follows from the table;
        then each run evaluates it, else the runs that sensors request repeat the last result
    :param always: evaluate it also if no table has changed, as it depends on more than them
    """

    return lambda function: OwnCheck((table, *others), function, blocking, always)


def find_checks(config: Settings) -> list[OwnCheck]:
    """Return the checks of the modules that ``pipelines`` of ``[tool.topicberg]`` names."""
    checks = members(config.project_root, config.project.pipelines, OwnCheck)
    return list({id(check): check for _, check in checks}.values())  # another module may import it


def validate(check: OwnCheck, others: Mapping[str, str]) -> None:
    """:raises SpecError: the check is wrong, or has a name of others (name → where it is from)"""
    for is_wrong, problem in (
        (not NAME.fullmatch(check.name), "the name has other characters than a-z, 0-9 and _"),
        (
            check.name in others,
            f"iceberg/{check.tables[0]} has a check of this name already: {others.get(check.name)}",
        ),
        (
            len(inspect.signature(check.function).parameters) != 1,
            "the function should have one parameter, which gets Tables",
        ),
    ):
        if is_wrong:
            raise SpecError(
                f"{check.file}: check {check.name}: {problem}",
                hint="correct or rename the function; docs/checks.md explains checks of your own",
            )


def own_check(check: OwnCheck, identifiers: Mapping[str, TableName]) -> TableCheck:
    """Return the check as others of the table are; ``identifiers``: of its tables, by name."""
    _, *others = check.tables

    def evaluate(probe: Probe) -> Finding:
        snapshots = [probe.iceberg.metadata.current_snapshot_id]
        for name in others:
            if (table := probe.find(identifiers[name])) is None:
                return good(f"the table {name} was not created yet")
            snapshots.append(table.metadata.current_snapshot_id)
        state = " ".join(map(str, (code_version(check.function, ""), *snapshots)))
        last = probe.last(check.name)
        if last is not None and not check.always and last.facts.get(EVALUATED) == state:
            return replace(last, what=str(last.facts[VERDICT]))
        if not (probe.reads_rows or check.blocking) and (again := repeated(last)):
            return again
        finding, ended = _finding(check, identifiers)
        facts = {**finding.facts, **({EVALUATED: state} if ended else {})}
        return covering(probe.iceberg, replace(finding, facts=facts))

    text = inspect.getdoc(check.function) or ""
    if not check.always:
        text += f" Evaluated when {' or '.join(check.tables)} has changed, by check_tables."
    return TableCheck(check.name, text.strip(), evaluate, check.blocking)


def _finding(check: OwnCheck, identifiers: Mapping[str, TableName]) -> tuple[Finding, bool]:
    """Return what the function finds, and whether it ended without an error."""
    try:
        with Tables.limited(identifiers) as tables:
            result = check.function(tables)
    except Exception as error:
        if classify(error) is not None:
            raise
        return _raised(check, error), False
    if isinstance(result, bool):
        result = dg.AssetCheckResult(passed=result)
    if not isinstance(result, dg.AssetCheckResult):
        message = f"the check returned {type(result).__name__}"
        remediation = f"let {check.name} in {check.file} return a bool or a dg.AssetCheckResult"
        return Finding(message, remediation), False
    message = result.description or f"the check {'passed' if result.passed else 'failed'}"
    return replace(finding_of(result), what=message.rstrip(".")), True


def _raised(check: OwnCheck, error: Exception) -> Finding:
    line, message = line_in(error, check.file), f"{type(error).__name__}: {safe(error)}"
    hint = f"correct {check.file}" + (f", line {line}" if line else "")
    if isinstance(error, TopicbergError):
        message, hint = error.message, error.hint or hint
    return Finding(f"the check ended with an error: {message}", hint)
