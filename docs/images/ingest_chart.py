"""Draw the chart of the ingest benchmark in ``docs/performance.md``.

    python docs/images/ingest_chart.py FILE...

of the files that ``tests/benchmarks/ingest.py --json FILE`` wrote. Where two files have a workload,
the first one counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

OURS, OTHERS, LIMIT = "#1f6feb", "#57606a", "#d0d7de"
MARKS = {"Flink by hand": ("D", "Flink, handwritten decoder"), "clean topic": ("|", "clean topic")}
LIMIT_NAME = "reading and writing"


def draw(workloads: dict[str, Any]) -> Figure:
    """Return one row for each workload: topicberg, Flink, the clean topic, and the limit."""
    mpl.rcParams["svg.hashsalt"] = "topicberg"  # the same file every time
    found = {
        name: {
            what: about["clean_records" if what == "clean topic" else "records"] / seconds / 1e3
            for what, seconds in about["seconds"].items()
        }
        for name, about in reversed(workloads.items())
        if "topicberg" in about["seconds"] and not name.startswith("batch")
    }
    figure = Figure(figsize=(9, 0.7 + 0.26 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    names = list(found)
    limits = [one[LIMIT_NAME] for one in found.values()]
    axes.barh(names, limits, color=LIMIT, label="limit: reading and writing, without decoding")
    ours = [one["topicberg"] for one in found.values()]
    bars = axes.barh(names, ours, height=0.5, color=OURS, label="topicberg")
    axes.bar_label(bars, fmt="%.0f", padding=-26, fontsize=7, color="white")
    for what, (mark, label) in MARKS.items():
        points = [(one[what], name) for name, one in found.items() if what in one]
        if points:
            speeds, rows = zip(*points, strict=True)
            axes.scatter(speeds, rows, color=OTHERS, marker=mark, s=30, zorder=3, label=label)
    axes.set_xlabel("thousand records/s", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.margins(y=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="lower right")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    workloads: dict[str, Any] = {}
    for file in parser.parse_args().files:
        for name, about in json.loads(file.read_text())["workloads"].items():
            workloads.setdefault(name, about)
    target = Path(__file__).with_name("ingest.svg")
    draw(workloads).savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
