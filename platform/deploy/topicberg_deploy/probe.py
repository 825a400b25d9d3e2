"""What documentation does not settle, tried in the accounts: ``topicberg deploy probe``.

A volume and a catalog integration are created in Snowflake, described and dropped. Neither connects
to AWS, so their bucket and role need not exist. Of a deployment that exists, the reader's key is
used, and a job run of its EMR Serverless application loads the catalog as all job runs do.

The report, which its owner can send to anybody, has no text of an account: names of properties and
errors as vendors spell them, numbers, yes and no, and why something was not tried.
"""

from __future__ import annotations

import base64
import gzip
import json
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from topicberg.catalogs.glue import get_table, metadata_location
from topicberg.catalogs.snowflake.names import SnowflakeNames, quote
from topicberg.catalogs.snowflake.session import ask
from topicberg.clients import rsa
from topicberg.clients.answers import MISREAD
from topicberg.endpoints import LakeEndpoints, load_endpoints
from topicberg.endpoints.model import CATALOG
from topicberg.errors import TopicbergError
from topicberg.errors.aws import code_of
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
from topicberg_deploy.record import MEASURED
from topicberg_deploy.snowflake.principals import User
from topicberg_deploy.snowflake.session import SqlObject, find, run

OWNER = "ACCOUNTADMIN"
ROLE_ARN = "arn:aws:iam::123456789012:role/probe"
_PRINCIPALS = tuple((f"{of}_IAM_USER_ARN", f"{of}_EXTERNAL_ID") for of in ("GLUE_AWS", "API_AWS"))
"""The names of an integration's principal and external id."""
NO_DEPLOYMENT = "there is no deployment of these settings"
_READER = f"{READER}/tableflow"
_JOB = f"""\
from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate().sql("USE {CATALOG}")
"""
_ENDED = ("SUCCESS", "FAILED", "CANCELLED")
_VENDOR_NAME = re.compile(r"[A-Za-z]+\d?(_[A-Za-z]+\d?|_\d{1,2}(?=_[A-Za-z]|$))*")
_PACKAGES = ("topicberg", "topicberg-deploy", "boto3", "snowflake-connector-python")
_PHASES = ("CONNECTED", "PENDING", "FAILED", "DISCONNECTED")
_TOTALS = ("total-delete-files", "total-position-deletes", "total-equality-deletes")
_JOB_ERRORS = (
    *("NoSuchFileException", "ClassNotFoundException", "NoClassDefFoundError"),
    *("NoSuchMethodError", "ModuleNotFoundError", "AccessDeniedException"),
)
"""Errors that say where the class path, Python or a right differs."""


Fact = bool | int | list[str]
"""What a report may have: texts are only names of the vendor, by :func:`vendor_names`."""
Facts = dict[str, Fact]
Look = Callable[[DeployContext, Facts], str]


class NotTriedError(Exception):
    """Why something is not tried; the text is one of this package, without names of the user's."""


@dataclass(frozen=True)
class ProbeResult:
    """
    :param key: of the answer in the report
    :param difference: from what is expected; empty: there is none
    :param facts: what the report has of it
    :param not_tried: why it was not tried; empty: it was
    """

    key: str
    what: str
    difference: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    not_tried: str = ""


def vendor_names(values: Iterable[object]) -> list[str]:
    """Return those that are words with underscores, as vendors name properties and errors."""
    return [str(value) for value in values if _VENDOR_NAME.fullmatch(str(value))]


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


def probe(context: DeployContext) -> Iterator[ProbeResult]:
    """Yield what was observed. What is created for it is dropped, also after an error."""
    name = f"{context.config.prefix}_PROBE".upper()
    volume, integration = _Volume("probe/volume", name), _Integration("probe/integration", name)
    user = User("probe/user", context.snowflake.admin()["user"])
    with _created(volume, context):
        look: Look = partial(_names, volume, ["ALLOW_WRITES"], (_LOCATION,))
        yield observe(context, "snowflake.volume", volume.title, look)
    with _created(integration, context):
        look = partial(_names, integration, _PROPERTIES, _PRINCIPALS)
        yield observe(context, "snowflake.integration", integration.title, look)
    yield observe(context, "snowflake.user", user.title, partial(_names, user, _FINGERPRINTS, ()))
    for key, title, look in (
        ("snowflake.network_policy", "network policy of Snowflake's account", _network_policy),
        ("aws.lake_formation", "AWS Lake Formation", _lake_formation),
        ("confluent.keys", "API keys of Confluent", _shown),
        ("confluent.reader", "what the reader's key sees", _seen_by_reader),
        ("emr.job", "a job run of EMR Serverless", _job),
    ):
        yield observe(context, key, title, look)


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


def observe(context: DeployContext, key: str, title: str, look: Look) -> ProbeResult:
    """:param look: adds the facts, and returns the difference"""
    facts: Facts = {}
    try:
        return ProbeResult(key, title, look(context, facts), facts)
    except NotTriedError as reason:
        return ProbeResult(key, title, not_tried=str(reason))
    except Exception as error:
        if not (isinstance(error, (TopicbergError, *MISREAD)) or is_of_vendor(error)):
            raise
        number, code = getattr(error, "errno", None), code_of(error)
        facts["errors"] = vendor_names([type(error).__name__, *([code] if code else [])])
        facts |= {"errno": number} if isinstance(number, int) else {}
        # A message of ours names what the answer has.
        difference = error.message if isinstance(error, TopicbergError) else str(error)
        return ProbeResult(key, title, difference, facts)


def _names(
    resource: SqlObject,
    names: Iterable[str],
    one_of: tuple[tuple[str, ...], ...],
    context: DeployContext,
    facts: Facts,
) -> str:
    """Return which names DESC lacks; the facts are its columns, and its properties.

    :param names: all of them are expected
    :param one_of: of these, all names of one of them
    """
    rows = find(context, f"DESC {resource.of} {quote(resource.name)}", resource.owner) or []
    facts["columns"] = vendor_names(rows[0] if rows else ())
    facts["properties"] = properties = vendor_names(row["property"] for row in rows)
    described = {name.upper() for name in properties}
    if not rows:
        return "DESC finds nothing"
    missing = [name for name in names if name not in described]
    if one_of and not any(described >= {*group} for group in one_of):
        missing.append(" or ".join(map(" and ".join, one_of)))
    present = ", ".join(sorted(described))
    return f"DESC lacks {', '.join(missing)}; it has {present}" if missing else ""


def _network_policy(context: DeployContext, facts: Facts) -> str:
    rows = run(context, "SHOW PARAMETERS LIKE 'network_policy' IN ACCOUNT", "SECURITYADMIN")
    policy = next((row["value"] for row in rows), "")
    facts["is_set"] = bool(policy)
    why = "must allow this machine, and every other one that runs `topicberg deploy`"
    return f"{policy} {why}" if policy else ""


def _lake_formation(context: DeployContext, facts: Facts) -> str:
    facts["is_governed"] = is_governed = read_data_lake(context).is_governed
    why = "it governs the catalog: `topicberg deploy plan` prints the grants that are missing"
    return why if is_governed else ""


def _shown(context: DeployContext, facts: Facts) -> str:
    if not (secret := context.read_secret(context.names.confluent_secret(_READER))):
        raise NotTriedError(NO_DEPLOYMENT)
    key = secret["api.key"]
    facts["are_shown"] = is_shown(context, key)
    if facts["are_shown"]:
        return ""
    return (
        f"Confluent does not show {key} to this login, so stored keys are tried instead, and "
        "those that `topicberg deploy rotate` replaces may stay"
    )


def _seen_by_reader(context: DeployContext, facts: Facts) -> str:
    if not context.read_secret(context.names.confluent_secret(_READER)):
        raise NotTriedError(NO_DEPLOYMENT)
    difference = ""
    for name, path in (("topics", TOPICS), ("integrations", CATALOGS)):
        total, seen = (len(listed(context, path, key) or []) for key in ("tableflow", _READER))
        facts |= {name: total, f"{name}_seen": seen}
        if seen < total:
            difference = (
                f"it lists {seen} of {total} at {path}, so plans of CI do not see the rest: "
                "the role Operator does not suffice"
            )
    return difference


def _job(context: DeployContext, facts: Facts) -> str:
    if (emr := emr_settings()) is None:
        raise NotTriedError(f"{NO_DEPLOYMENT}, or it has no application of EMR Serverless")
    config = settings()
    failure = run_job(context, emr, config, load_endpoints(config))
    facts |= {"succeeded": not failure, "errors": [name for name in _JOB_ERRORS if name in failure]}
    return failure


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


def observe_deployment(context: DeployContext) -> Iterator[ProbeResult]:
    """Yield what only a report has of a deployment; it changes nothing."""
    waited = "how long `create` waited"
    for key, title, look in (
        ("snowflake.dotted_name", "names with periods in CATALOG_TABLE_NAME", _dotted_names),
        ("snowflake.refresh", "REFRESH by another role", _refresh),
        ("tableflow.catalog", "catalog integrations of Tableflow", _catalogs),
        ("tableflow.delete_files", "delete files of Tableflow's upsert tables", _delete_files),
        ("emr.merge", "a merge of an upsert view on EMR", _merge),
        ("propagation.role_trust", waited, partial(_waited, MEASURED[:1])),
        ("propagation.integration", waited, partial(_waited, MEASURED[1:])),
        ("propagation.grants", waited, partial(_waited, ())),
    ):
        yield observe(context, key, title, look)


def report(context: DeployContext, results: Iterable[ProbeResult]) -> str:
    """Return the results as JSON."""
    numbers = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    numbers["emr"] = context.config.emr.release.rpartition("-")[2]
    rows = run(context, "SELECT CURRENT_VERSION() AS version", OWNER)
    numbers["snowflake"] = str(rows[0]["version"])
    versions = {name: re.findall(r"^\d+(?:\.\d+)*", number) for name, number in numbers.items()}
    answers = {
        result.key: {"not tried": result.not_tried}
        if result.not_tried
        else {"as expected": not result.difference, **result.facts}
        for result in results
    }
    return json.dumps({"versions": versions, "answers": answers}, indent=1) + "\n"


def _tables(context: DeployContext, database: str) -> list[Any]:
    statement = f"SHOW ICEBERG TABLES IN DATABASE {quote(database)}"
    return find(context, statement, OWNER) or []


def _dotted_names(context: DeployContext, facts: Facts) -> str:
    names = SnowflakeNames.of(context.config)
    dotted = {spec.glue_name for spec in context.specs if "." in spec.glue_name}
    linked = {row["name"] for row in _tables(context, names.linked_database)}
    created = {row["catalog_table_name"] for row in _tables(context, names.database)}
    if not dotted or not linked | created:
        raise NotTriedError("no topic whose name has a period has a table in Snowflake")
    facts |= {"discovered": len(dotted & linked), "created": len(dotted & created)}
    return "" if dotted & (linked | created) else "Snowflake has no such table"


def _refresh(context: DeployContext, facts: Facts) -> str:
    tables = _tables(context, SnowflakeNames.of(context.config).linked_database)
    values = context.read_secret(context.names.snowflake_secret)
    if not tables or not values:
        raise NotTriedError("there is no table of a linked database")
    path = quote(*(tables[0][name] for name in ("database_name", "schema_name", "name")))
    key = base64.b64encode(rsa.private_key(values)).decode()
    user = context.config.snowflake_name("user")
    with closing(context.snowflake.connect(user=user, private_key=key)) as connection:
        ask(connection, f"ALTER ICEBERG TABLE {path} REFRESH")
    return ""


def _catalogs(context: DeployContext, facts: Facts) -> str:
    integrations = listed(context, CATALOGS, "tableflow")
    if not integrations:
        raise NotTriedError(NO_DEPLOYMENT)
    phases = Counter((one.get("status") or {}).get("phase") for one in integrations)
    facts |= {phase: phases[phase] for phase in _PHASES if phases[phase]}
    return "" if phases["CONNECTED"] else "no catalog integration is connected"


def _delete_files(context: DeployContext, facts: Facts) -> str:
    place = context.read_secret(context.names.confluent_secret("tableflow")) or {}
    namespace = context.config.tableflow_namespace or place.get("kafka.cluster.id", "none")
    totals, s3 = Counter[str](), context.aws.client("s3")
    for spec in context.specs:
        table = get_table(context.aws.client("glue"), namespace, spec.glue_name)
        location = metadata_location(table) if table else None
        if spec.write_mode != "upsert" or location is None:
            continue
        address = urlsplit(location)
        text = s3.get_object(Bucket=address.netloc, Key=address.path.lstrip("/"))["Body"].read()
        metadata = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
        totals[f"format_version_{metadata['format-version']}"] += 1
        for snapshot in metadata.get("snapshots", ()):
            if snapshot["snapshot-id"] == metadata.get("current-snapshot-id"):
                summary = snapshot.get("summary", {})
                totals.update({name: int(summary.get(name, 0)) for name in _TOTALS})
    if not totals:
        raise NotTriedError("no upsert table of Tableflow exists")
    facts |= totals
    return ""


def _merge(context: DeployContext, facts: Facts) -> str:
    raise NotTriedError("a merge writes to a table: run the graph, and see its first run")


def _waited(keys: tuple[str, ...], context: DeployContext, facts: Facts) -> str:
    """:param keys: of resources; none: of all that were refused"""
    waits = context.record.waits()
    seconds = [waits[key] for key in waits if (key in keys if keys else key not in MEASURED)]
    if not seconds:
        raise NotTriedError("`create` has not waited for it")
    facts["seconds"] = max(seconds)
    return ""
