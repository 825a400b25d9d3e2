"""What a deployment costs a month by order of magnitude, and which of the vendors' quotas it meets.

Every price and quota of topicberg is here; the resources use them. They are estimates: list prices
change, differ by region, and leave out taxes, discounts and traffic. A comment says which were read
in a copy of the vendor's page; the others are from experience and may be out of date.
"""

from __future__ import annotations

from dataclasses import dataclass

from topicberg.settings import Settings

AS_OF = "November 2026"
HOURS = 730
"""Of a month."""
WAREHOUSE_HOURS = 30
"""Assumed: an hour a day. A warehouse suspends after a minute."""
JOB_HOURS = 30
"""Assumed: job runs of EMR Serverless for an hour a day."""
POLL_SECONDS = 1.0
"""Assumed: for so long one credit an hour is taken whenever Snowflake polls for a table's new
snapshots, and for new tables. No page of Snowflake's says how long that takes."""
FREE_CLOUD_SERVICES = 0.1
"""Of a warehouse's credits: https://docs.snowflake.com/en/user-guide/cost-understanding-compute."""
CONFLUENT = "confluent.io/confluent-cloud/pricing"


PRICES = {
    # confluent.io/confluent-cloud/pricing: Basic was read in September 2026
    "basic": 0.0,  # hour of the first eCKU, Basic
    "standard": 0.75,  # hour of the first eCKU, Standard
    "traffic": 0.05,  # GB in or out, Basic
    "task": 0.035,  # connector task and hour
    "tableflow": 0.10,  # Tableflow topic and hour
    # aws.amazon.com/secrets-manager/pricing, …/s3/pricing, …/emr/pricing and …/athena/pricing
    "secret": 0.40,  # secret and month
    "s3": 0.023,  # GB and month
    "vcpu": 0.053,  # vCPU and hour
    "memory": 0.0058,  # GB of memory and hour
    "athena": 5.0,  # TB read
    # snowflake.com/pricing
    "credit": 3.0,  # XSMALL takes one an hour
}
"""USD of one unit."""


@dataclass(frozen=True)
class Cost:
    """What one resource costs a month, in USD.

    :param basis: what it is computed from, or what costs besides
    """

    usd: float
    basis: str


def poll_credits(config: Settings) -> float:
    """Return the credits a month of polling the catalog for one object."""
    return HOURS * POLL_SECONDS / config.snowflake_refresh_seconds


@dataclass(frozen=True)
class Quota:
    """A documented limit, by default. Most can be raised by the vendor's support.

    :param scope: what shares it, e.g. other deployments of the account
    """

    name: str
    limit: int
    scope: str
    source: str


_REGIONAL = "account and region"
_CLUSTER_TYPES = "docs.confluent.io/cloud/current/clusters/cluster-types.html"
_SERVICE_QUOTAS = "docs.confluent.io/cloud/current/quotas/service-quotas.html"
_EMR = "docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/endpoints-quotas.html"
_IAM = "docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"
_GENERAL = "docs.aws.amazon.com/general/latest/gr"
QUOTAS = {
    quota.name: quota
    for quota in (
        Quota("partitions", 4096, "Basic or Standard cluster", _CLUSTER_TYPES),
        Quota("ACLs", 1000, "cluster", _CLUSTER_TYPES),
        Quota("service accounts", 1000, "organization", _SERVICE_QUOTAS),
        Quota("schemas", 100, "environment with Essentials, free", CONFLUENT),
        Quota("S3 buckets", 10_000, "account", f"{_GENERAL}/s3.html"),
        Quota("IAM roles", 1000, "account", _IAM),
        Quota("IAM policies", 1500, "account", _IAM),
        Quota("SSM parameters", 10_000, _REGIONAL, f"{_GENERAL}/ssm.html"),
        Quota("vCPU of EMR Serverless", 16, _REGIONAL, _EMR),
        Quota("Athena workgroups", 1000, _REGIONAL, f"{_GENERAL}/athena.html"),
    )
}
"""No number was found for connectors and Tableflow topics of a cluster, nor for Snowflake's
volumes, integrations and tables. Confluent's Service Quotas API has those of an organization.
"""
