"""What a deployment notes in SSM Parameter Store, so that everything else finds it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from topicberg.settings import (
    DEPLOYED_EMR,
    DEPLOYED_LINK,
    DEPLOYED_NAMES,
    DEPLOYED_NAMESPACE,
    read_deployment,
)
from topicberg_deploy.aws.emr import runtime_settings
from topicberg_deploy.confluent_apis import CLUSTER
from topicberg_deploy.context import DeployContext


def note(context: DeployContext) -> None:
    """Write down what only the accounts know, if it is not there already."""
    config, deploy = context.config, context.deploy
    if config.deployment == "local" or CLUSTER not in context.live:
        return
    before, _, _ = read_deployment(config, deploy.profile, deploy.aws_endpoint_url)
    names = {name: getattr(context.seen, name) for name in (*DEPLOYED_NAMES, DEPLOYED_LINK)}
    if config.tableflow_namespace:
        names[DEPLOYED_NAMESPACE] = config.tableflow_namespace
    emr = runtime_settings(context)
    if emr is None and config.on_emr:  # it was not looked at, e.g. with --target
        emr = before.get(DEPLOYED_EMR)
    if emr is not None:
        names[DEPLOYED_EMR] = emr
    if names != before:
        context.aws.client("ssm").put_parameter(
            Name=context.names.deployment,
            Value=json.dumps(names),
            Type="String",
            Overwrite=True,
            Tier="Intelligent-Tiering",  # with long names it may pass the 4,096 characters
        )


@contextmanager
def noting(context: DeployContext) -> Iterator[None]:
    """Write the names down at the end, also of a deployment that was created in part."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the error that ended the deployment is reported
            note(context)
        raise
    note(context)


def forget_note(context: DeployContext) -> None:
    """Delete what was noted."""
    ssm = context.aws.client("ssm")
    with suppress(ssm.exceptions.ParameterNotFound):
        ssm.delete_parameter(Name=context.names.deployment)
