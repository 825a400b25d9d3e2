"""Athena's workgroup: where results go, how long, and how much one query may read."""

from __future__ import annotations

from dataclasses import dataclass

from topicberg.settings import Settings
from topicberg_deploy.aws.bucket import RESULTS
from topicberg_deploy.aws.iam import tags, tags_of
from topicberg_deploy.costs import PRICES, QUOTAS, Cost
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, Resource

SCAN_LIMIT = 100 * 1024**3
"""Bytes that one query may read: at about 5 USD a terabyte, half a dollar."""


@dataclass(frozen=True)
class Workgroup(Resource):
    kind = "Athena workgroup"
    quota = QUOTAS["Athena workgroups"]

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(0.0, f"${PRICES['athena']:.0f} a TB read")

    def find(self, context: DeployContext) -> Live | None:
        athena = context.aws.client("athena")
        try:
            workgroup = athena.get_work_group(WorkGroup=self.name)["WorkGroup"]
        except athena.exceptions.InvalidRequestException as error:
            if "not found" in str(error):
                return None
            raise
        configuration = workgroup.get("Configuration", {})
        tag_set = athena.list_tags_for_resource(ResourceARN=self._arn(context))["Tags"]
        fields = {
            "results": configuration.get("ResultConfiguration", {}).get("OutputLocation"),
            "enforced": configuration.get("EnforceWorkGroupConfiguration"),
            "scan_limit": configuration.get("BytesScannedCutoffPerQuery"),
            "state": workgroup["State"],
            "tags": tags_of(tag_set, context),
        }
        return Live(self.name, fields)

    def desired(self, context: DeployContext) -> Fields:
        return {
            "results": f"s3://{context.aws.compute_bucket}/{RESULTS}",
            "enforced": True,
            "scan_limit": SCAN_LIMIT,
            "state": "ENABLED",
            "tags": context.aws.tags,
        }

    def create(self, context: DeployContext) -> None:
        context.aws.client("athena").create_work_group(
            Name=self.name,
            Description="Queries of topicberg's tables",
            Configuration={
                "ResultConfiguration": {"OutputLocation": self.desired(context)["results"]},
                "EnforceWorkGroupConfiguration": True,
                "PublishCloudWatchMetricsEnabled": False,
                "BytesScannedCutoffPerQuery": SCAN_LIMIT,
            },
            Tags=tags(context),
        )

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        athena = context.aws.client("athena")
        if "tags" in changes:
            athena.tag_resource(ResourceARN=self._arn(context), Tags=tags(context))
        if changes.keys() - {"tags"}:
            results = {"OutputLocation": self.desired(context)["results"]}
            athena.update_work_group(
                WorkGroup=self.name,
                ConfigurationUpdates={
                    "ResultConfigurationUpdates": results,
                    "EnforceWorkGroupConfiguration": True,
                    "BytesScannedCutoffPerQuery": SCAN_LIMIT,
                },
                State="ENABLED",
            )

    def delete(self, context: DeployContext, live: Live) -> None:
        """With its history of queries; their results are in the bucket, which is emptied."""
        context.aws.client("athena").delete_work_group(
            WorkGroup=live.id, RecursiveDeleteOption=True
        )

    def _arn(self, context: DeployContext) -> str:
        region, account = context.config.aws_region, context.aws.account
        return f"arn:aws:athena:{region}:{account}:workgroup/{self.name}"
