"""Write the results of drills into docs/drills.md.

python tests/drills/table.py results.jsonl

The file is what TOPICBERG_TEST_DRILL_RESULTS named; of a drill that ran twice, the later counts. A
table of whose drills it has none stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "docs" / "drills.md"
LONGEST = 160

Result = Mapping[str, Any]
Row = tuple[str, ...]


def message(text: str) -> str:
    text = re.sub(r"(drill|lasting)_(append|upsert)_[0-9a-f]{6}", "…", text)
    text = re.sub(r" \((?:/[^/\s()]+){2,}\)", "", text)  # where Python found a module
    text = re.sub(r"topic …: |\(?0x[0-9a-f]+\)?", "", text)
    text = text.partition(" → ")[0].replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def passing(results: Iterable[Result]) -> list[Row]:
    """Faults of 15 seconds."""
    rows = {}
    for result in results:
        name = " and ".join(f"{component} {fault}" for component, fault in result["faults"])
        # Who lies in a component's place has stopped it: its own states say nothing.
        lies = any(fault == "lying" for _, fault in result["faults"])
        messages = list(dict.fromkeys(message(text) for text in result["messages"]))
        rows[name] = (
            name,
            "" if lies else ", ".join(result["states"]) or "–",
            "<br>".join(messages[:3]) or "–",
            f"{result['seconds']:.0f}",
            str(result["lost"]),
            str(result["twice"]),
        )
    return sorted(rows.values(), key=lambda row: (" and " in row[0], row[0]))


def lasting(results: Iterable[Result]) -> list[Row]:
    """Faults that last: of alerts that say the same, in one line."""
    rows = {}
    for result in results:
        said: dict[tuple[str, str], list[str]] = {}
        for key, severity, what, mend in result["told"]:
            told = f"`{message(key)}`" + (" (warning)" if severity == "warning" else "")
            said.setdefault((message(what), message(mend)), []).append(told)
        after = f"{result['seconds_back']:.0f} s; lost {result['lost']}, twice {result['twice']}"
        rows[result["lasting"]] = (
            result["lasting"].replace("-", " "),
            "<br>".join(f"{', '.join(keys)}: {what}" for (what, _), keys in said.items())
            or "nothing",
            "<br>".join(_short([mend for _, mend in said])) or "–",
            after if result["told"] else after.replace(" s;", " s, nothing to tell;"),
        )
    return [*rows.values()]


def _short(texts: list[str]) -> list[str]:
    """Each once, and none that only says more than another one."""
    found = [*dict.fromkeys(texts)]
    return [
        text
        for text in found
        if not any(text != other and text.startswith(other) for other in found)
    ]


def write(text: str, name: str, heads: Row, rows: list[Row]) -> str:
    """The document with other rows between the marks of a table."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if not rows:
        return text
    table = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    table.insert(1, "|" + "---|" * len(heads))
    before, after = text.partition(begin)[0], text.partition(end)[2]
    return "\n".join([before + begin, "", *table, "", end + after])


def main() -> None:
    results = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    text = DOCUMENT.read_text()
    heads: Row = ("fault", "states", "messages", "seconds", "lost", "twice")
    text = write(text, "results", heads, passing(r for r in results if "faults" in r))
    heads = ("component", "what is told", "the mend that it says", "after it is back")
    text = write(text, "lasting", heads, lasting(r for r in results if "lasting" in r))
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
