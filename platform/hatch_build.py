"""Metadata of the build: this distribution needs topicberg in exactly its own version."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Adds topicberg to the dependencies of ``[tool.hatch.metadata.hooks.custom]``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies: both distributions get their version from the same tag."""
        version = str(metadata["version"]).partition("+")[0]  # a local version matches without it
        metadata["dependencies"] = [f"topicberg=={version}", *self.config["dependencies"]]
