"""Write the results of drills into docs/drills.md.

python tests/drills/table.py results.jsonl

The file is what TOPICBERG_TEST_DRILL_RESULTS named; of a drill that ran twice, the later counts.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "drills.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
LONGEST = 160


def message(text: str) -> str:
    text = re.sub(r"drill_(append|upsert)_[0-9a-f]{6}", "…", text)
    text = re.sub(r" \((?:/[^/\s()]+){2,}\)", "", text)  # where Python found a module
    text = re.sub(r"topic …: |\(?0x[0-9a-f]+\)?", "", text)
    text = text.partition(" → ")[0].replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def main() -> None:
    rows = {}
    for line in Path(sys.argv[1]).read_text().splitlines():
        result = json.loads(line)
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
    table = ["| fault | states | messages | seconds | lost | twice |", "|---|---|---|---|---|---|"]
    ordered = sorted(rows.values(), key=lambda row: (" and " in row[0], row[0]))
    table += [f"| {' | '.join(row)} |" for row in ordered]
    text = DOCUMENT.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    DOCUMENT.write_text("\n".join([before + BEGIN, "", *table, "", END + after]))


if __name__ == "__main__":
    main()
