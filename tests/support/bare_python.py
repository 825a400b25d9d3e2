"""A Python that has PySpark and what it needs, as workers of a cluster may have."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

WORKERS_OWN = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "six", "pytz", "tzdata")


def bare_python(folder: Path, without: str = "") -> Path:
    """Write a Python that has only some packages, which Spark starts its workers with."""
    packages = folder / "packages"
    packages.mkdir()
    for name in WORKERS_OWN:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or name == without:
            continue
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (packages / source.name).symlink_to(source)
        if (libraries := source.with_name(f"{name}.libs")).exists():
            (packages / libraries.name).symlink_to(libraries)
    command = folder / "python"
    # The daemon of the local stack is a part of topicberg.
    command.write_text(
        "#!/bin/sh\nshift 2\n"
        f"export PYTHONPATH={packages} HOME={folder}\n"
        f'exec {sys.executable} -S -m pyspark.daemon "$@"\n'
    )
    command.chmod(0o755)
    return command
