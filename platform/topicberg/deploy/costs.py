"""What a deployment costs a month by order of magnitude, and which of the vendors' quotas it meets.

Every price and quota of topicberg is here. They are estimates: list prices change, differ by
region, and leave out taxes, discounts and traffic. :attr:`Price.checked` says which were read in a
copy of the vendor's page; the others are from experience and may be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from topicberg.deploy.aws import emr
from topicberg.deploy.aws.athena import Workgroup
from topicberg.deploy.aws.bucket import Bucket
from topicberg.deploy.aws.iam import Policy, Role
from topicberg.deploy.aws.parameters import Parameters
from topicberg.deploy.confluent.connect import Connector
from topicberg.deploy.confluent.iam import ServiceAccount
from topicberg.deploy.confluent.kafka import Acl, KafkaTopic, RegistrySubject
from topicberg.deploy.confluent.keys import RotatingKey
from topicberg.deploy.confluent.organization import Cluster
from topicberg.deploy.confluent.tableflow import TableflowTopic
from topicberg.deploy.resource import Live, Resource
from topicberg.deploy.snowflake.principals import UserKeys
from topicberg.deploy.snowflake.storage import IcebergTable, LinkedDatabase, Warehouse
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


@dataclass(frozen=True)
class Price:
    """
    :param usd: of one unit
    :param unit: e.g. ``topic and hour``
    :param source: page of the vendor that has the price of today
    :param checked: when the source was read; empty: not, so only the order of magnitude is meant
    """

    usd: float
    unit: str
    source: str
    checked: str = ""


PRICES = {
    "basic": Price(0.0, "hour of the first eCKU, Basic", CONFLUENT, "September 2026"),
    "standard": Price(0.75, "hour of the first eCKU, Standard", CONFLUENT),
    "traffic": Price(0.05, "GB in or out, Basic", CONFLUENT, "September 2026"),
    "task": Price(0.035, "connector task and hour", CONFLUENT),
    "tableflow": Price(0.10, "Tableflow topic and hour", CONFLUENT),
    "secret": Price(0.40, "secret and month", "aws.amazon.com/secrets-manager/pricing"),
    "s3": Price(0.023, "GB and month", "aws.amazon.com/s3/pricing"),
    "vcpu": Price(0.053, "vCPU and hour", "aws.amazon.com/emr/pricing"),
    "memory": Price(0.0058, "GB of memory and hour", "aws.amazon.com/emr/pricing"),
    "athena": Price(5.0, "TB read", "aws.amazon.com/athena/pricing"),
    "credit": Price(3.0, "credit; XSMALL takes one an hour", "snowflake.com/pricing"),
}


@dataclass(frozen=True)
class Cost:
    """What one resource costs a month, in USD.

    :param basis: what it is computed from, or what costs besides
    """

    resource: Resource
    usd: float
    basis: str


def costs(resources: Iterable[Resource], config: Settings, live: Mapping[str, Live]) -> list[Cost]:
    """Return what the wanted resources cost that are not free, by the month.

    :param live: what exists, by key: a cluster keeps its type
    """
    wanted = [one for one in resources if one.wanted]
    return [cost for one in wanted if (cost := _cost(one, config, live)) is not None]


def _cost(resource: Resource, config: Settings, live: Mapping[str, Live]) -> Cost | None:
    """Return the cost of a resource; None: it is free."""
    match resource:
        case Cluster(given=str()):
            return None  # it is paid anyway
        case Cluster():
            found = live.get(resource.key)
            type_ = resource.type or (found.fields["type"] if found else "Basic")
            hourly = PRICES["standard" if type_ == "Standard" else "basic"].usd
            basis = f"{type_}, and ${PRICES['traffic'].usd} a GB in or out, beside storage"
            return Cost(resource, hourly * HOURS, basis)
        case Connector():
            usd = resource.tasks * PRICES["task"].usd * HOURS
            return Cost(resource, usd, "by task, and traffic")
        case TableflowTopic():
            return Cost(resource, PRICES["tableflow"].usd * HOURS, "and by GB processed")
        case RotatingKey() | UserKeys():
            return Cost(resource, PRICES["secret"].usd, "a secret")
        case Bucket():
            return Cost(resource, 0.0, f"${PRICES['s3'].usd} a GB, and requests")
        case emr.Application():
            run = min(emr.WORKERS * emr.WORKER_VCPU, config.emr_max_vcpu)
            memory = run * emr.GB_PER_VCPU * PRICES["memory"].usd
            hourly = run * PRICES["vcpu"].usd + memory
            basis = f"an hour of job runs a day at ${hourly:.2f}; nothing while idle"
            return Cost(resource, hourly * JOB_HOURS, basis)
        case Workgroup():
            return Cost(resource, 0.0, f"${PRICES['athena'].usd:.0f} a TB read")
        case Warehouse():
            return Cost(resource, PRICES["credit"].usd * WAREHOUSE_HOURS, "an hour a day")
        case IcebergTable():
            usd = _poll_credits(config) * PRICES["credit"].usd
            every = config.snowflake_refresh_seconds
            return Cost(resource, usd, f"automated refresh every {every} s, a second each")
        case LinkedDatabase():
            free = FREE_CLOUD_SERVICES * WAREHOUSE_HOURS
            usd = max(0.0, _poll_credits(config) - free) * PRICES["credit"].usd
            basis = f"discovery every {config.snowflake_refresh_seconds} s, beyond what is free"
            return Cost(resource, usd, basis)
        case _:
            return None


def _poll_credits(config: Settings) -> float:
    """Return the credits a month of polling the catalog for one object."""
    return HOURS * POLL_SECONDS / config.snowflake_refresh_seconds


@dataclass(frozen=True)
class Quota:
    """A documented limit, by default. Most can be raised by the vendor's support.

    :param counts: how much of it a deployment takes, e.g. the number of its roles
    :param scope: what shares it, e.g. other deployments of the account
    """

    name: str
    limit: int
    counts: Callable[[list[Resource], Settings], int]
    scope: str
    source: str


def _number(*kinds: type[Resource]) -> Callable[[list[Resource], Settings], int]:
    return lambda resources, _config: sum(isinstance(one, kinds) for one in resources)


def _partitions(resources: list[Resource], _config: Settings) -> int:
    return sum(one.spec.partitions for one in resources if isinstance(one, KafkaTopic))


def _parameters(resources: list[Resource], _config: Settings) -> int:
    return sum(len(one.values) for one in resources if isinstance(one, Parameters))


def _vcpu(resources: list[Resource], config: Settings) -> int:
    return config.emr_max_vcpu if any(isinstance(o, emr.Application) for o in resources) else 0


_REGIONAL = "account and region"
_CLUSTER_TYPES = "docs.confluent.io/cloud/current/clusters/cluster-types.html"
_SERVICE_QUOTAS = "docs.confluent.io/cloud/current/quotas/service-quotas.html"
_EMR = "docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/endpoints-quotas.html"
_IAM = "docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"
_GENERAL = "docs.aws.amazon.com/general/latest/gr"
QUOTAS = (
    Quota("partitions", 4096, _partitions, "Basic or Standard cluster", _CLUSTER_TYPES),
    Quota("ACLs", 1000, _number(Acl), "cluster", _CLUSTER_TYPES),
    Quota("service accounts", 1000, _number(ServiceAccount), "organization", _SERVICE_QUOTAS),
    Quota("schemas", 100, _number(RegistrySubject), "environment with Essentials, free", CONFLUENT),
    Quota("S3 buckets", 10_000, _number(Bucket), "account", f"{_GENERAL}/s3.html"),
    Quota("IAM roles", 1000, _number(Role), "account", _IAM),
    Quota("IAM policies", 1500, _number(Policy), "account", _IAM),
    Quota("SSM parameters", 10_000, _parameters, _REGIONAL, f"{_GENERAL}/ssm.html"),
    Quota("vCPU of EMR Serverless", 16, _vcpu, _REGIONAL, _EMR),
    Quota("Athena workgroups", 1000, _number(Workgroup), _REGIONAL, f"{_GENERAL}/athena.html"),
)
"""No number was found for connectors and Tableflow topics of a cluster, nor for Snowflake's
volumes, integrations and tables. Confluent's Service Quotas API has those of an organization.
"""


@dataclass(frozen=True)
class Usage:
    quota: Quota
    used: int

    @property
    def passed(self) -> bool:
        return self.used > self.quota.limit


def usage(resources: Iterable[Resource], config: Settings) -> list[Usage]:
    """Return how much of each quota the wanted resources take."""
    wanted = [one for one in resources if one.wanted]
    return [Usage(quota, quota.counts(wanted, config)) for quota in QUOTAS]
