"""Steps of the builds of topicberg's three distributions."""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Adds topicberg to the dependencies of ``[tool.hatch.metadata.hooks.custom]``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies: the distributions have their version from one file."""
        needed = f"topicberg=={metadata['version']}"
        metadata["dependencies"] = [needed, *self.config["dependencies"]]


class Documentation(BuildHookInterface):
    """Adds the site of the documentation to the wheel, to which assets and alerts link."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the site; an installation in place has that of ``make docs``."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir"]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # of what comes after this version
        subprocess.run([*build, self._folder.name], cwd=self.root, env=environment, check=True)
        build_data["force_include"][self._folder.name] = "topicberg/docs"

    def finalize(self, *_: Any) -> None:
        """Delete the site, which the wheel has by now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
