"""Makes the screenshots of the docs, from a stack on which everything was materialized.

::

    topicberg ui &          # and let the sensors come to rest
    python docs/screenshots.py --url http://127.0.0.1:3000 --chromium /usr/bin/chromium
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
PAGES = {
    "asset-graph": ("/asset-groups?groups=stock_trades", 2600, 900),
    "checks": ("/assets/iceberg/stock_trades?view=checks", 1600, 1000),
    "asset": ("/assets/iceberg/stock_trades_with_totals", 1600, 1400),
}
"""File name → page, width, height."""
PATIENCE_MS = 25_000
"""How long a page may draw: the graph is laid out in the browser."""


def shoot(chromium: str, url: str, file: Path, width: int, height: int) -> None:
    """One page as a PNG."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--screenshot={file}",
                f"--window-size={width},{height}",
                f"--virtual-time-budget={PATIENCE_MS}",
                url,
            ],
            check=True,
            capture_output=True,
            timeout=180,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:3000", help="the Dagster UI")
    parser.add_argument("--chromium", default="chromium", help="a Chromium or Chrome")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("pages", nargs="*", help=f"of {', '.join(PAGES)}; all by default")
    arguments = parser.parse_args()
    for name in arguments.pages or PAGES:
        path, width, height = PAGES[name]
        shoot(
            arguments.chromium, arguments.url + path, arguments.out / f"{name}.png", width, height
        )


if __name__ == "__main__":
    main()
