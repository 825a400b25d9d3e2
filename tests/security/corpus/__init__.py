"""The corpus: see README.md beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
TEXTS: list[str] = [json.loads(line) for line in (FOLDER / "texts.jsonl").read_text().splitlines()]
REQUESTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "requests.yaml").read_text())
