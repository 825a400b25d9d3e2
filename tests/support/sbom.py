"""Adds the jars of the local stack to a CycloneDX document: ``make sbom``.

Source: CycloneDX 1.6, ``component``; Package URL, type ``maven``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from topicberg_local.jars import Coordinate, JarsLock, Pin, read_lock


def component(coordinate: Coordinate, pin: Pin) -> dict[str, Any]:
    """Return a jar as a component, with its checksum."""
    qualifiers = [
        f"{name}={value}"
        for name, value in (("classifier", coordinate.classifier), ("type", coordinate.extension))
        if value and value != "jar"
    ]
    name = f"pkg:maven/{coordinate.group}/{coordinate.artifact}@{coordinate.version}"
    purl = f"{name}?{'&'.join(qualifiers)}" if qualifiers else name
    return {
        "type": "library",
        "bom-ref": purl,
        "group": coordinate.group,
        "name": coordinate.artifact,
        "version": coordinate.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": pin.sha256}],
    }


def add_jars(document: dict[str, Any], lock: JarsLock) -> None:
    """Add every locked jar that the document does not have."""
    components = document.setdefault("components", [])
    references = {component.get("bom-ref") for component in components}
    jars = [component(Coordinate.parse(text), pin) for text, pin in lock.files.items()]
    components += [component for component in jars if component["bom-ref"] not in references]


def main(path: Path) -> None:
    document = json.loads(path.read_text())
    add_jars(document, read_lock())
    path.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
