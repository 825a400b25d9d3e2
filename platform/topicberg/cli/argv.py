"""Removes secrets among the arguments from what ``ps`` shows, before slow imports.

They are visible while the interpreter itself starts, so pass secrets in the environment or at the
prompt instead.
"""

from __future__ import annotations

import sys

FLAGS = ("--confluent-api-secret",)


def hide_secrets() -> None:
    """Overwrite the process's title if it has a secret."""
    if (shown := without_secrets(sys.orig_argv)) != sys.orig_argv:
        from setproctitle import setproctitle

        setproctitle(" ".join(shown))


def without_secrets(arguments: list[str]) -> list[str]:
    """Return the arguments with ``***`` for the values of :data:`FLAGS`."""

    def shown(before: str, argument: str) -> str:
        name, equals, _ = argument.partition("=")
        if before in FLAGS:
            return "***"
        return f"{name}=***" if name in FLAGS and equals else argument

    return [*map(shown, ("", *arguments), arguments)]
