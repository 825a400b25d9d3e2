"""What only the accounts of a deployment know, in SSM Parameter Store.

``topicberg deploy`` writes it, and every process of the cloud deployment reads it when it starts,
on whatever machine. None of it is secret.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

DEPLOYED_EMR = "emr"
"""The settings of the EMR Serverless application that ``deploy`` created."""
DEPLOYED_NAMES = ("cluster_id", "bucket", "derived_bucket", "aws_account_id")
DEPLOYED_LINK = "snowflake_linked_database"
"""The choice of the deployment, which outlasts a new default."""
DEPLOYED_NAMESPACE = "tableflow_namespace"
"""The topics' namespace, if it is not the cluster's id."""
_MISSING = "ParameterNotFound"
_TIMEOUT_SECONDS = 5


class Place(Protocol):
    """The settings that say which deployment it is."""

    prefix: str
    aws_region: str


def deployment_parameter(prefix: str) -> str:
    """Return the name of the parameter."""
    return f"/topicberg/{prefix}/deployment"


def read_deployment(
    config: Place, profile: str | None = None, endpoint: str | None = None
) -> tuple[dict[str, Any], str, bool]:
    """Return the names of a deployment, why one may be missing, and whether AWS answered.

    :param profile: of AWS; by default that of the environment
    :param endpoint: of AWS's services, likewise
    """
    import boto3  # it takes a fifth of a second, which the local deployment saves
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    name = deployment_parameter(config.prefix)
    title = f"SSM parameter {name} in {config.aws_region}"
    options = Config(connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS)
    try:
        session = boto3.Session(profile_name=profile, region_name=config.aws_region)
        ssm = session.client("ssm", endpoint_url=endpoint, config=options)
        names = json.loads(ssm.get_parameter(Name=name)["Parameter"]["Value"])
    except (BotoCoreError, ClientError) as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] == _MISSING:
            return {}, f"there is no {title}", True
        return {}, f"{title} cannot be read: {error}", False
    except ValueError:
        names = None
    if not isinstance(names, dict):
        return {}, f"{title} is not a JSON object", False
    return names, f"{title} lacks it", True
