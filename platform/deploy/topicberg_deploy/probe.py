"""What documentation does not settle, tried in the accounts: ``topicberg deploy probe``.

A volume and a catalog integration are created in Snowflake, described and dropped. Neither connects
to AWS, so their bucket and role need not exist. Of a deployment that exists, the reader's key is
used, and a job run of its EMR Serverless application loads the catalog as all job runs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from topicberg.endpoints import LakeEndpoints, load_endpoints
from topicberg.endpoints.model import CATALOG
from topicberg.errors import TopicbergError
from topicberg.errors.meaning import is_of_vendor
from topicberg.settings import Settings, emr_settings, settings
from topicberg.settings.models import EmrSettings
from topicberg.tableflow.service.confluent import TOPICS
from topicberg.transforms.emr import start_job_run
from topicberg_deploy.aws.bucket import CODE
from topicberg_deploy.aws.emr import STATE_SECONDS
from topicberg_deploy.aws.lake_formation import read_data_lake
from topicberg_deploy.confluent.integrations import CATALOGS
from topicberg_deploy.confluent.keys import is_shown
from topicberg_deploy.confluent.tableflow import listed
from topicberg_deploy.context import READER, DeployContext
from topicberg_deploy.snowflake.session import SqlObject, run

OWNER = "ACCOUNTADMIN"
ROLE_ARN = "arn:aws:iam::123456789012:role/probe"
PRINCIPALS = ("GLUE_AWS", "API_AWS")
"""How the names of an integration's principal and external id begin."""
_READER = f"{READER}/tableflow"
_JOB = f"""\
from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate().sql("USE {CATALOG}")
"""
_ENDED = ("SUCCESS", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class ProbeResult:
    """
    :param difference: from what is expected; empty: there is none
    """

    what: str
    difference: str = ""


@dataclass(frozen=True)
class _Volume(SqlObject):
    kind = "external volume"
    of = "EXTERNAL VOLUME"
    owner = OWNER

    def definition(self, context: DeployContext) -> str:
        return (
            "STORAGE_LOCATIONS = ((NAME = 'probe' STORAGE_PROVIDER = 'S3' "
            f"STORAGE_BASE_URL = 's3://probe/' STORAGE_AWS_ROLE_ARN = '{ROLE_ARN}')) "
            "ALLOW_WRITES = FALSE"
        )


@dataclass(frozen=True)
class _Integration(SqlObject):
    kind = "catalog integration"
    of = "CATALOG INTEGRATION"
    owner = OWNER

    def definition(self, context: DeployContext) -> str:
        region = context.config.aws_region
        return (
            "CATALOG_SOURCE = ICEBERG_REST TABLE_FORMAT = ICEBERG CATALOG_NAMESPACE = 'probe' "
            f"REST_CONFIG = (CATALOG_URI = 'https://glue.{region}.amazonaws.com/iceberg' "
            "CATALOG_API_TYPE = AWS_GLUE CATALOG_NAME = '123456789012') "
            f"REST_AUTHENTICATION = (TYPE = SIGV4 SIGV4_IAM_ROLE = '{ROLE_ARN}' "
            f"SIGV4_SIGNING_REGION = '{region}') ENABLED = TRUE"
        )


@dataclass(frozen=True)
class _User(SqlObject):
    kind = "user"
    of = "USER"
    owner = "SECURITYADMIN"


def probe(context: DeployContext) -> Iterator[ProbeResult]:
    """Yield what was observed. What is created for it is dropped, also after an error."""
    name = f"{context.config.prefix}_PROBE".upper()
    volume, integration = _Volume("probe/volume", name), _Integration("probe/integration", name)
    with _created(volume, context):
        yield _observe(volume.title, lambda: _names(volume, context, ["ALLOW_WRITES"], _LOCATION))
    with _created(integration, context):
        principals = [
            (f"{principal}_IAM_USER_ARN", f"{principal}_EXTERNAL_ID") for principal in PRINCIPALS
        ]
        yield _observe(
            integration.title, lambda: _names(integration, context, _PROPERTIES, *principals)
        )
    user = _User("probe/user", context.snowflake.admin()["user"])
    yield _observe(user.title, lambda: _names(user, context, _FINGERPRINTS))
    yield _observe("network policy of Snowflake's account", lambda: _network_policy(context))
    yield _observe("AWS Lake Formation", lambda: _lake_formation(context))
    if secret := context.read_secret(context.names.confluent_secret(_READER)):
        yield _observe("API keys of Confluent", lambda: _shown(context, secret["api.key"]))
        yield _observe("what the reader's key sees", lambda: _seen_by_reader(context))
    if emr := emr_settings():
        config = settings()
        yield _observe(
            "a job run of EMR Serverless",
            lambda: run_job(context, emr, config, load_endpoints(config)),
        )


_LOCATION = ("STORAGE_LOCATION_1",)
_PROPERTIES = (
    "CATALOG_SOURCE",
    "CATALOG_NAMESPACE",
    "ENABLED",
    "REFRESH_INTERVAL_SECONDS",
    "REST_CONFIG",
    "REST_AUTHENTICATION",
)
_FINGERPRINTS = ("RSA_PUBLIC_KEY_FP", "RSA_PUBLIC_KEY_2_FP")


@contextmanager
def _created(resource: SqlObject, context: DeployContext) -> Iterator[None]:
    resource.create(context)
    try:
        yield
    finally:
        run(context, f'DROP {resource.of} IF EXISTS "{resource.name}"', resource.owner)


def _observe(what: str, look: Callable[[], str]) -> ProbeResult:
    try:
        return ProbeResult(what, look())
    except Exception as error:
        if isinstance(error, TopicbergError):  # it names what the answer has
            return ProbeResult(what, error.message)
        if not is_of_vendor(error):
            raise
        return ProbeResult(what, str(error))


def _names(
    resource: SqlObject, context: DeployContext, names: Iterable[str], *one_of: tuple[str, ...]
) -> str:
    """Return which names DESC lacks.

    :param names: all of them are expected
    :param one_of: of these, all names of one of them
    """
    described = resource.described(context)
    if described is None:
        return "DESC finds nothing"
    missing = [name for name in names if name not in described]
    if one_of and not any(described.keys() >= {*group} for group in one_of):
        missing.append(" or ".join(map(" and ".join, one_of)))
    return f"DESC lacks {', '.join(missing)}; it has {', '.join(described)}" if missing else ""


def _network_policy(context: DeployContext) -> str:
    rows = run(context, "SHOW PARAMETERS LIKE 'network_policy' IN ACCOUNT", "SECURITYADMIN")
    policy = next((row["value"] for row in rows), "")
    why = "must allow this machine, and every other one that runs `topicberg deploy`"
    return f"{policy} {why}" if policy else ""


def _lake_formation(context: DeployContext) -> str:
    why = "it governs the catalog: `topicberg deploy plan` prints the grants that are missing"
    return why if read_data_lake(context).is_governed else ""


def _shown(context: DeployContext, key: str) -> str:
    if is_shown(context, key):
        return ""
    return (
        f"Confluent does not show {key} to this login, so stored keys are tried instead, and "
        "those that `topicberg deploy rotate` replaces may stay"
    )


def _seen_by_reader(context: DeployContext) -> str:
    for path in (TOPICS, CATALOGS):
        total, seen = (len(listed(context, path, name) or []) for name in ("tableflow", _READER))
        if seen < total:
            return (
                f"it lists {seen} of {total} at {path}, so plans of CI do not see the rest: "
                "the role Operator does not suffice"
            )
    return ""


def run_job(context: DeployContext, emr: EmrSettings, config: Settings, lake: LakeEndpoints) -> str:
    """Start a job run that only loads the catalog; return how it failed.

    It shows whether the release's image has Python and Iceberg where they are expected, and, if
    the application is stopped, whether who deploys may start a job run and see its page.
    """
    bucket, program = context.aws.compute_bucket, f"{CODE}probe.py"
    s3, client = context.aws.client("s3"), context.aws.client("emr-serverless")
    given = emr.model_copy(update={"entry_point": f"s3://{bucket}/{program}"})
    request = start_job_run("probe", given, config, lake)
    s3.put_object(Bucket=bucket, Key=program, Body=_JOB.encode())
    try:
        started = client.start_job_run(**request, executionTimeoutMinutes=10)
        job = {name: started[name] for name in ("applicationId", "jobRunId")}

        def ended() -> dict[str, str] | None:
            state: dict[str, str] = client.get_job_run(**job)["jobRun"]
            return state if state["state"] in _ENDED else None

        awaited = f"job run {job['jobRunId']} of EMR Serverless ends"
        run = context.poll(ended, awaited, STATE_SECONDS)
        client.get_dashboard_for_job_run(**job)  # which Dagster requests, too
    finally:
        s3.delete_object(Bucket=bucket, Key=program)
    end = f"{job['jobRunId']} ended as {run['state']}: {run['stateDetails']}; see {emr.log_uri}"
    return "" if run["state"] == "SUCCESS" else end
