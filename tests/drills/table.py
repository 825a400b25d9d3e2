"""Write the results of drills into docs/contributing/drills.md.

python tests/drills/table.py results.jsonl

The file is what TOPICBERG_TEST_DRILL_RESULTS names. If a drill ran twice, the later result counts.
A table without results stays as it is, and so do the faults by other means that have none.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "docs" / "contributing" / "drills.md"
FAULTS = ("killed", "stopped", "full", "lying")

Result = Mapping[str, Any]
Row = tuple[str, ...]


def short_faults(results: Iterable[Result]) -> list[Row]:
    """Return a row per component, with a cell per fault, then a row per pair of faults."""
    single: dict[str, dict[str, str]] = {}
    pairs: dict[str, Row] = {}
    for result in results:
        faults = [tuple(fault) for fault in result["faults"]]
        if len(faults) == 1:
            component, fault = faults[0]
            single.setdefault(component, {})[fault] = _outcome(result, "seconds")
        else:
            name = " and ".join(f"{component} {fault}" for component, fault in faults)
            pairs[name] = (name, _outcome(result, "seconds"), "", "", "")
    rows = [
        (component, *(cells.get(fault, "–") for fault in FAULTS))
        for component, cells in sorted(single.items())
    ]
    return [*rows, *(pairs[name] for name in sorted(pairs))]


def lasting_faults(results: Iterable[Result]) -> list[Row]:
    """Return a row per component that stayed down: what was alerted, and how long recovery took."""
    rows = {}
    for result in results:
        alerts = {_alert(key, severity): None for key, severity, *_ in result["reported"]}
        name = result["lasting"].replace("-", " ")
        rows[name] = (name, ", ".join(alerts) or "none", _outcome(result, "seconds_back"))
    return [*rows.values()]


def other_faults(results: Iterable[Result]) -> list[Row]:
    """Return a row per fault by other means: its alert, and how long that took."""
    rows = {}
    for result in results:
        seconds = (f"{result[each]:.0f}" for each in ("seconds_reported", "seconds_resolved"))
        alert = re.sub(r"^check .*:|\b[0-9a-f]{8}$", _short, result["alert"])
        rows[result["other"]] = (result["other"], f"`{alert}`", *seconds)
    return [*rows.values()]


def merged(text: str, name: str, rows: list[Row]) -> list[Row]:
    """Return the rows that a table of the document has, with these in the place of theirs."""
    table = text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    known = [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in lines]
    return [*{row[0]: row for row in [*known, *rows]}.values()]


def _short(part: re.Match[str]) -> str:
    return "" if part[0].startswith("check ") else "RUN"


def _alert(key: str, severity: str) -> str:
    name = re.sub(r"^check .*:", "", key)
    return f"`{name}`" + (" (warning)" if severity == "warning" else "")


def _outcome(result: Result, seconds: str) -> str:
    """Return the seconds; a drill that lost or duplicated records says so."""
    faults = [f"{result[each]} {each}" for each in ("lost", "twice") if result[each]]
    return ", ".join([f"{result[seconds]:.0f}", *faults])


def write(text: str, name: str, heads: Row, rows: list[Row]) -> str:
    """Return the document with these rows between the marks of a table."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if not rows:
        return text
    table = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    table.insert(1, "|" + "---|" * len(heads))
    before, after = text.partition(begin)[0], text.partition(end)[2]
    return "\n".join([before + begin, "", *table, "", end + after])


def main() -> None:
    results = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    text, rows = DOCUMENT.read_text(), short_faults(r for r in results if "faults" in r)
    text = write(text, "results", ("component", *FAULTS), rows)
    rows = lasting_faults(r for r in results if "lasting" in r)
    text = write(text, "lasting", ("component", "alert", "seconds to recover"), rows)
    rows = merged(text, "other", other_faults(r for r in results if "other" in r))
    heads = ("fault", "alert", "seconds until it is sent", "until it is resolved")
    text = write(text, "other", heads, rows)
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
