"""``topicberg checks``: every check of every asset, with its last result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.output import AsJson, echo, echo_json, exit_if, load_lake, settings
from topicberg.errors import TopicbergError
from topicberg.security.text import one_line
from topicberg.wording import count, suggestion

if TYPE_CHECKING:
    from topicberg.settings import Settings


@dataclass(frozen=True)
class _Check:
    """A check; ``result``: passed, warning, failed, or not evaluated."""

    asset: str
    check: str
    blocking: bool
    result: str
    evaluated_at: str | None
    rows_until: str | None
    covers: str
    message: str | None


def checks(
    asset: Annotated[
        str | None,
        typer.Argument(help="An asset, e.g. iceberg/orders, or a table; all by default."),
    ] = None,
    failing: Annotated[bool, typer.Option("--failing", help="Only failing checks.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the checks of all assets: last result, time, whether they block, and what they cover.

    Reads results that Dagster recorded; evaluates nothing. Exits with 1 if a check fails.
    """
    recorded = every = _recorded(settings())
    if asset is not None:
        recorded = [c for c in every if asset in (c.asset, c.asset.partition("/")[2])]
        if not recorded:
            known = sorted({check.asset for check in every})
            raise TopicbergError(f"no checks of asset {asset!r}{suggestion(asset, known)}")
    wrong = [check for check in recorded if check.result in ("failed", "warning")]
    shown = wrong if failing else recorded
    if as_json:
        echo_json([asdict(check) for check in shown])
    else:
        _print(shown, describe=asset is not None)
        missing = sum(check.result == "not evaluated" for check in recorded)
        echo(
            f"{count(len(recorded), 'check')}: {len(wrong)} failing, {missing} not evaluated; "
            "while Dagster runs, the job check_tables evaluates them every five minutes"
        )
    exit_if(any(check.result == "failed" for check in wrong))


def _print(recorded: list[_Check], *, describe: bool) -> None:
    """Print one line per check, below its asset; explain what fails, or is requested."""
    width = max((len(check.check) for check in recorded), default=0)
    for asset, checks_of_asset in groupby(recorded, lambda check: check.asset):
        echo(asset, bold=True)
        for check in checks_of_asset:
            color = {"failed": "red", "warning": "yellow", "passed": "green"}.get(check.result)
            evaluated_at = (check.evaluated_at or "")[:19].replace("T", " ")
            blocks = "  blocking" if check.blocking else ""
            line = f"  {check.check:<{width}}  {check.result:<13}  {evaluated_at}{blocks}"
            echo(line.rstrip(), fg=color)
            if describe:
                echo(f"    {one_line(check.covers)}")
            if check.message and (describe or check.result in ("failed", "warning")):
                echo(f"    {one_line(check.message)}")


def _recorded(config: Settings) -> list[_Check]:
    from topicberg.checks.rules import COVERS
    from topicberg.dagster.home import opened_instance
    from topicberg.orchestration.checks.adapter import check_specs, lake_checks
    from topicberg.orchestration.checks.evaluations import last_evaluations

    lake = load_lake(config)
    every = [spec for asset_checks in lake.checks for spec in check_specs(*asset_checks)]
    every += [spec for definition in lake_checks(lake) for spec in definition.check_specs]
    specs = {spec.key: spec for spec in every}
    with opened_instance(config) as instance:
        last = last_evaluations(instance, specs.keys())
    recorded = []
    for key, spec in specs.items():
        newest = last.get(key)
        moment = newest.at.astimezone(UTC).isoformat(timespec="seconds") if newest else None
        evaluation = newest.event if newest else None
        until = evaluation.metadata.get(COVERS) if evaluation else None
        recorded.append(
            _Check(
                asset="/".join(key.asset_key.path),
                check=key.name,
                blocking=spec.blocking,
                result=_result(evaluation),
                evaluated_at=moment,
                rows_until=str(until.value) if until else None,
                covers=spec.description or "",
                message=evaluation.description if evaluation else None,
            )
        )
    return sorted(recorded, key=lambda check: (check.asset, check.check))


def _result(evaluation: object) -> str:
    import dagster as dg

    if not isinstance(evaluation, dg.AssetCheckEvaluation):
        return "not evaluated"
    if evaluation.passed:
        return "passed"
    return "warning" if evaluation.severity == dg.AssetCheckSeverity.WARN else "failed"
