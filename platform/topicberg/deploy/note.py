"""What a deployment notes in the state directory, so that everything else finds it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from topicberg.deploy.aws.emr import runtime_settings
from topicberg.deploy.confluent_apis import CLUSTER
from topicberg.deploy.context import DeployContext
from topicberg.files import replace_file
from topicberg.settings import (
    DEPLOYED_EMR,
    DEPLOYED_FILE,
    DEPLOYED_LINK,
    DEPLOYED_NAMES,
    DEPLOYED_NAMESPACE,
    noted,
)


def note(context: DeployContext) -> None:
    """Write down what only the accounts know."""
    config = context.config
    if config.deployment == "local" or CLUSTER not in context.live:
        return
    names = ("prefix", *DEPLOYED_NAMES, DEPLOYED_LINK)
    known = {name: getattr(context.seen, name) for name in names}
    if config.tableflow_namespace:
        known[DEPLOYED_NAMESPACE] = config.tableflow_namespace
    emr = runtime_settings(context)
    if emr is None and config.on_emr:  # it was not looked at, e.g. with --target
        emr = noted(config)[0].get(DEPLOYED_EMR)
    if emr is not None:
        known[DEPLOYED_EMR] = emr
    replace_file(config.state_dir / DEPLOYED_FILE, json.dumps(known, indent=2) + "\n")


@contextmanager
def noting(context: DeployContext) -> Iterator[None]:
    """Write the names down at the end, also of a deployment that was created in part."""
    try:
        yield
    finally:
        note(context)


def forget_note(context: DeployContext) -> None:
    """Delete what was noted."""
    (context.config.state_dir / DEPLOYED_FILE).unlink(missing_ok=True)
