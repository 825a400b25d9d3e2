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

OURS, OTHERS, LIMIT = "#1f6feb", "#8b95a5", "#d0d7de"
LIMITS = ("raw reading", "copy by Spark")
TITLES = {"small-avro": "Small records, Avro", "wide-avro": "Wide records, Avro"}


def draw(workloads: dict[str, Any]) -> Figure:
    """Return one panel for each workload: records or MB a second of each contender."""
    mpl.rcParams["svg.hashsalt"] = "topicberg"  # the same file every time
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for number, (workload, title) in enumerate(TITLES.items()):
        about = workloads[workload]
        is_wide = workload.startswith("wide")
        total = about["bytes"] / 1e6 if is_wide else about["records"] / 1e3
        speeds = {name: total / seconds for name, seconds in about["seconds"].items()}
        names = sorted(speeds, key=lambda name: speeds[name])
        colors = [
            OURS if name == "topicberg" else LIMIT if name in LIMITS else OTHERS for name in names
        ]
        axes = figure.add_subplot(1, 2, number + 1)
        bars = axes.barh(names, [speeds[name] for name in names], color=colors)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("MB/s" if is_wide else "thousand records/s", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
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
