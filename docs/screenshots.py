"""Makes the screenshots of the docs, from a stack on which everything was materialized.

::

    topicberg ui &          # and let the sensors come to rest
    python docs/screenshots.py --url http://127.0.0.1:3000 --chromium /usr/bin/chromium
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from websockets.sync.client import ClientConnection, connect

IMAGES = Path(__file__).parent / "images"
GROUP = "/locations/__repository__@topicberg/asset-groups"
PAGES = {
    "asset-graph": (f"{GROUP}/stock_trades/lineage", 2600, 2300),
    "checks": ("/assets/iceberg/stock_trades?view=checks", 1600, 1000),
    "asset": ("/assets/iceberg/stock_trades_with_totals", 1600, 1400),
    "backfill": ("/assets/iceberg/stock_total_trades", 1400, 900),
    "backfill-run": ("/runs", 1400, 900),  # after a backfill was launched
}
"""File name → page, width, height."""
CLICKS = {"backfill": ("Materialize", "All")}
"""File name → how the texts of the buttons begin that are clicked before, in this order."""
CLICK_SECONDS = 6
PATIENCE_SECONDS = 40
"""How long a page may draw. The UI never rests (it polls), and a graph is laid out in the browser,
so neither "the network is idle" nor Chromium's virtual time says when it is done."""


@contextmanager
def page(chromium: str, url: str, width: int, height: int) -> Iterator[str]:
    """The address of a page's DevTools.

    Source: Chrome DevTools Protocol, "HTTP Endpoints".
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            url,
        ]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as browser:
            try:
                port_file = Path(profile, "DevToolsActivePort")
                while not port_file.exists():
                    if browser.poll() is not None:
                        raise SystemExit(f"{chromium} did not start")
                    time.sleep(0.2)
                port = port_file.read_text().split()[0]
                tabs = requests.get(f"http://127.0.0.1:{port}/json", timeout=10).json()
                yield next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page")
            finally:
                browser.terminate()


def shoot(
    chromium: str, url: str, file: Path, width: int, height: int, clicks: Iterable[str] = ()
) -> None:
    """One page as a PNG, after clicks on the buttons whose texts begin so."""
    with page(chromium, url, width, height) as devtools:
        time.sleep(PATIENCE_SECONDS)
        with connect(devtools, max_size=None) as socket:
            for text in clicks:
                click = (
                    "[...document.querySelectorAll('button')]"
                    f".find(one => one.innerText.trim().startsWith({json.dumps(text)})).click()"
                )
                ask(socket, "Runtime.evaluate", expression=click)
                time.sleep(CLICK_SECONDS)
            answer = ask(socket, "Page.captureScreenshot")
        file.write_bytes(base64.b64decode(answer["data"]))


def ask(socket: ClientConnection, method: str, **params: str) -> dict[str, Any]:
    """One call of the DevTools, and its result."""
    socket.send(json.dumps({"id": 1, "method": method, "params": params}))
    answer: dict[str, Any] = {}
    while answer.get("id") != 1:
        answer = json.loads(socket.recv())
    return dict(answer["result"])


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
            arguments.chromium,
            arguments.url + path,
            arguments.out / f"{name}.png",
            width,
            height,
            CLICKS.get(name, ()),
        )


if __name__ == "__main__":
    main()
