"""Secrets among the arguments, taken out of what ``ps`` shows before anything slow is imported.

They are seen for as long as the interpreter itself takes to start: the environment or the prompt
is better.
"""

from __future__ import annotations

import sys

FLAGS = ("--confluent-api-secret",)


def hide_secrets() -> None:
    """Overwrite the process's title where a secret is in it."""
    told = without_secrets(sys.orig_argv)
    if told != sys.orig_argv:
        from setproctitle import setproctitle

        setproctitle(" ".join(told))


def without_secrets(arguments: list[str]) -> list[str]:
    """The arguments with ``***`` for the values of :data:`FLAGS`."""
    told: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if told and told[-1] in FLAGS:
            told.append("***")
        elif name in FLAGS and equals:
            told.append(f"{name}=***")
        else:
            told.append(argument)
    return told
