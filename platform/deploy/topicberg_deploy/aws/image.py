"""The image of the job runs of EMR Serverless, which is in a repository of ECR: another team's, so
that it is only read whether the service may pull it.
"""

from __future__ import annotations

import json
import logging
import re

from botocore.exceptions import ClientError

from topicberg.errors import TopicbergError
from topicberg.errors.aws import code_of
from topicberg.errors.meaning import means
from topicberg.errors.table import DENIED
from topicberg.settings import Settings
from topicberg_deploy.aws.iam import covers, listed
from topicberg_deploy.context import DeployContext

logger = logging.getLogger(__name__)
_IMAGE = re.compile(r"(?P<registry>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\..*?/(?P<name>[^:@]+)")
_PULL = {
    "Effect": "Allow",
    "Principal": {"Service": "emr-serverless.amazonaws.com"},
    "Action": ["ecr:BatchGetImage", "ecr:DescribeImages", "ecr:GetDownloadUrlForLayer"],
}


def image_repository(config: Settings) -> re.Match[str] | None:
    """Return registry (an account), region and name of the image's repository; None: no image."""
    return _IMAGE.match(config.emr.image or "") if config.on_emr else None


def check_image(context: DeployContext) -> None:
    """Warn if it is not proved that EMR Serverless may pull the image: the application is created,
    and its first job run fails.

    https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/application-custom-image.html

    :raises TopicbergError: the repository does not exist
    """
    repository = image_repository(context.config)
    if repository is None or repository["region"] != context.config.aws_region:
        return
    registry, name, ecr = repository["registry"], repository["name"], context.aws.client("ecr")
    try:
        policy = ecr.get_repository_policy(registryId=registry, repositoryName=name)["policyText"]
    except ecr.exceptions.RepositoryNotFoundException:
        raise TopicbergError(
            f"TOPICBERG_EMR__IMAGE: account {registry} has no repository {name} in "
            f"{context.config.aws_region}",
            hint="push the image to the deployment's region, or unset TOPICBERG_EMR__IMAGE",
        ) from None
    except ClientError as error:
        if not means(error, DENIED) and code_of(error) != "RepositoryPolicyNotFoundException":
            raise
        policy = '{"Statement": []}'
    if not any(covers(statement, _PULL) for statement in listed(json.loads(policy)["Statement"])):
        logger.warning(
            "it is not proved that EMR Serverless may pull %s. If job runs fail with it, let the "
            "owner of repository %s add this statement to those of its policy: %s",
            context.config.emr.image,
            name,
            json.dumps(_PULL),
        )
