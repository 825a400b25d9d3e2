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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
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
from topicberg_deploy.snowflake.session import find, run

OWNER = "ACCOUNTADMIN"
ROLE_ARN = "arn:aws:iam::123456789012:role/probe"
_VOLUME = (
    "STORAGE_LOCATIONS = ((NAME = 'probe' STORAGE_PROVIDER = 'S3' "
    f"STORAGE_BASE_URL = 's3://probe/' STORAGE_AWS_ROLE_ARN = '{ROLE_ARN}')) ALLOW_WRITES = FALSE"
)
_INTEGRATION = (
    "CATALOG_SOURCE = ICEBERG_REST TABLE_FORMAT = ICEBERG CATALOG_NAMESPACE = 'probe' "
    "REST_CONFIG = (CATALOG_URI = 'https://glue.{region}.amazonaws.com/iceberg' "
    "CATALOG_API_TYPE = AWS_GLUE CATALOG_NAME = '123456789012') "
    f"REST_AUTHENTICATION = (TYPE = SIGV4 SIGV4_IAM_ROLE = '{ROLE_ARN}' "
    "SIGV4_SIGNING_REGION = '{region}') ENABLED = TRUE"
)
_PROPERTIES = (
    *("CATALOG_SOURCE", "CATALOG_NAMESPACE", "ENABLED"),
    *("REFRESH_INTERVAL_SECONDS", "REST_CONFIG", "REST_AUTHENTICATION"),
)
_PRINCIPALS = tuple((f"{of}_IAM_USER_ARN", f"{of}_EXTERNAL_ID") for of in ("GLUE_AWS", "API_AWS"))
"""The names of an integration's principal and external id."""
_NO_DEPLOYMENT = "no deployment of these settings exists"
_READER = f"{READER}/tableflow"
_JOB = f"""\
from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate().sql("USE {CATALOG}")
"""
_ENDED = ("SUCCESS", "FAILED", "CANCELLED")
_VENDOR_NAME = re.compile(r"[A-Za-z]+\d?(_[A-Za-z]+\d?|_\d{1,2}(?=_[A-Za-z]|$))*")
_VERSION = re.compile(r"^\d{1,4}(?:\.\d{1,4})*\b")
_ERRNOS = 10**6
"""Snowflake's numbers of errors are smaller, and those of accounts of AWS are not."""
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
Look = Callable[[DeployContext, Facts], str | None]
"""Adds the facts; returns how they differ from what is expected, None if nothing was tried."""


@dataclass(frozen=True)
class ProbeResult:
    """
    :param key: of the answer in the report
    :param difference: from what is expected; empty: there is none; None: it was not tried
    :param facts: what the report has of it
    :param otherwise: why it was not tried, if so, without names of the user's
    """

    key: str
    what: str
    difference: str | None
    facts: Mapping[str, Fact]
    otherwise: str


def vendor_names(values: Iterable[object]) -> list[str]:
    """Return those that are words with underscores, as vendors name properties and errors."""
    return [str(value) for value in values if _VENDOR_NAME.fullmatch(str(value))]


def probe(context: DeployContext, *, is_reported: bool = False) -> Iterator[ProbeResult]:
    """Yield what was observed. What is created for it is dropped, also after an error.

    :param is_reported: also what only a report has of a deployment, which changes nothing
    """
    for key, what, otherwise, look in (*_OF_ACCOUNTS, *(_OF_DEPLOYMENT if is_reported else ())):
        facts: Facts = {}
        yield ProbeResult(key, what, _observe(context, facts, look), facts, otherwise)


def _observe(context: DeployContext, facts: Facts, look: Look) -> str | None:
    try:
        return look(context, facts)
    except Exception as error:
        if not (isinstance(error, (TopicbergError, *MISREAD)) or is_of_vendor(error)):
            raise
        facts["errors"] = vendor_names([type(error).__name__, code_of(error)])
        number = getattr(error, "errno", None)
        if isinstance(number, int) and number < _ERRNOS:
            facts["errno"] = number
        # A message of ours names what the answer has.
        text = error.message if isinstance(error, TopicbergError) else str(error)
        return text or type(error).__name__


def _created(
    of: str,
    definition: str,
    names: Iterable[str],
    one_of: Collection[tuple[str, ...]],
    context: DeployContext,
    facts: Facts,
) -> str:
    name = quote(f"{context.config.prefix}_PROBE".upper())
    run(context, f"CREATE {of} {name} {definition}".format(region=context.config.aws_region), OWNER)
    try:
        return _describe(context, facts, f"{of} {name}", OWNER, names, one_of)
    finally:
        run(context, f"DROP {of} IF EXISTS {name}", OWNER)


def _user(context: DeployContext, facts: Facts) -> str:
    user, names = context.snowflake.admin()["user"], ("RSA_PUBLIC_KEY_FP", "RSA_PUBLIC_KEY_2_FP")
    return _describe(context, facts, f"USER {quote(user)}", "SECURITYADMIN", names)


def _describe(
    context: DeployContext,
    facts: Facts,
    described: str,
    role: str,
    names: Iterable[str],
    one_of: Collection[tuple[str, ...]] = (),
) -> str:
    """Return which names DESC lacks; the facts are its columns, and its properties.

    :param names: all of them are expected
    :param one_of: of these, all names of one of them
    """
    rows = find(context, f"DESC {described}", role) or []
    facts["columns"] = vendor_names(rows[0] if rows else ())
    facts["properties"] = properties = vendor_names(row["property"] for row in rows)
    present = {name.upper() for name in properties}
    missing = [name for name in names if name not in present]
    if one_of and not any(present.issuperset(group) for group in one_of):
        missing.append(" or ".join(map(" and ".join, one_of)))
    has = ", ".join(sorted(present)) or "nothing"
    return f"DESC lacks {', '.join(missing)}; it has {has}" if missing else ""


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


def _shown(context: DeployContext, facts: Facts) -> str | None:
    if not (secret := context.read_secret(context.names.confluent_secret(_READER))):
        return None
    facts["are_shown"] = are_shown = is_shown(context, secret["api.key"])
    why = (
        f"Confluent does not show {secret['api.key']} to this login, so stored keys are tried "
        "instead, and those that `topicberg deploy rotate` replaces may stay"
    )
    return "" if are_shown else why


def _seen_by_reader(context: DeployContext, facts: Facts) -> str | None:
    if not context.read_secret(context.names.confluent_secret(_READER)):
        return None
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


def _job(context: DeployContext, facts: Facts) -> str | None:
    if (emr := emr_settings()) is None:
        return None
    failure = run_job(context, emr, settings(), load_endpoints(settings()))
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


def report(context: DeployContext, results: Iterable[ProbeResult]) -> str:
    """Return the results as JSON."""
    numbers = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    numbers["emr"] = context.config.emr.release.rpartition("-")[2]
    rows = run(context, "SELECT CURRENT_VERSION() AS version", OWNER)
    numbers["snowflake"] = str(rows[0]["version"])
    versions = {name: _VERSION.findall(number) for name, number in numbers.items()}
    answers = {
        result.key: {"not tried": result.otherwise}
        if result.difference is None
        else {"as expected": not result.difference, **result.facts}
        for result in results
    }
    return json.dumps({"versions": versions, "answers": answers}, indent=1) + "\n"


def _tables(context: DeployContext, database: str) -> list[Any]:
    statement = f"SHOW ICEBERG TABLES IN DATABASE {quote(database)}"
    return find(context, statement, OWNER) or []


def _dotted_names(context: DeployContext, facts: Facts) -> str | None:
    names = SnowflakeNames.of(context.config)
    dotted = {spec.glue_name for spec in context.specs if "." in spec.glue_name}
    linked = {row["name"] for row in _tables(context, names.linked_database)}
    created = {row["catalog_table_name"] for row in _tables(context, names.database)}
    if not dotted or not linked | created:
        return None
    facts |= {"discovered": len(dotted & linked), "created": len(dotted & created)}
    return "" if dotted & (linked | created) else "Snowflake has no such table"


def _refresh(context: DeployContext, facts: Facts) -> str | None:
    tables = _tables(context, SnowflakeNames.of(context.config).linked_database)
    values = context.read_secret(context.names.snowflake_secret)
    if not tables or not values:
        return None
    path = quote(*(tables[0][name] for name in ("database_name", "schema_name", "name")))
    key = base64.b64encode(rsa.private_key(values)).decode()
    user = context.config.snowflake_name("user")
    with closing(context.snowflake.connect(user=user, private_key=key)) as connection:
        ask(connection, f"ALTER ICEBERG TABLE {path} REFRESH")
    return ""


def _catalogs(context: DeployContext, facts: Facts) -> str | None:
    if not (integrations := listed(context, CATALOGS, "tableflow")):
        return None
    phases = Counter((one.get("status") or {}).get("phase") for one in integrations)
    facts |= {phase: phases[phase] for phase in _PHASES if phases[phase]}
    return "" if phases["CONNECTED"] else "no catalog integration is connected"


def _delete_files(context: DeployContext, facts: Facts) -> str | None:
    place = context.read_secret(context.names.confluent_secret("tableflow")) or {}
    namespace = context.config.tableflow_namespace or place.get("kafka.cluster.id", "none")
    totals, s3 = Counter[str](), context.aws.client("s3")
    for spec in (spec for spec in context.specs if spec.write_mode == "upsert"):
        table = get_table(context.aws.client("glue"), namespace, spec.glue_name)
        if table is None or (location := metadata_location(table)) is None:
            continue
        address = urlsplit(location)
        text = s3.get_object(Bucket=address.netloc, Key=address.path.lstrip("/"))["Body"].read()
        metadata = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
        totals[f"format_version_{int(metadata['format-version'])}"] += 1
        for snapshot in metadata.get("snapshots", ()):
            if snapshot["snapshot-id"] == metadata.get("current-snapshot-id"):
                summary = snapshot.get("summary", {})
                totals.update({name: int(summary.get(name, 0)) for name in _TOTALS})
    facts |= totals
    return "" if totals else None


def _waited(keys: Collection[str], context: DeployContext, facts: Facts) -> str | None:
    """:param keys: of resources; none: of all that were refused"""
    waits = context.record.waits().items()
    seconds = [wait for key, wait in waits if (key in keys if keys else key not in MEASURED)]
    facts |= {"seconds": max(seconds)} if seconds else {}
    return "" if seconds else None


_Row = tuple[str, str, str, Look]
_LOCATION = (("STORAGE_LOCATION_1",),)
_OF_ACCOUNTS: tuple[_Row, ...] = (
    (
        "snowflake.volume",
        "DESC EXTERNAL VOLUME",
        "",
        partial(_created, "EXTERNAL VOLUME", _VOLUME, ("ALLOW_WRITES",), _LOCATION),
    ),
    (
        "snowflake.integration",
        "DESC CATALOG INTEGRATION",
        "",
        partial(_created, "CATALOG INTEGRATION", _INTEGRATION, _PROPERTIES, _PRINCIPALS),
    ),
    ("snowflake.user", "DESC USER", "", _user),
    ("snowflake.network_policy", "network policy of Snowflake's account", "", _network_policy),
    ("aws.lake_formation", "AWS Lake Formation", "", _lake_formation),
    ("confluent.keys", "API keys of Confluent", _NO_DEPLOYMENT, _shown),
    ("confluent.reader", "what the reader's key sees", _NO_DEPLOYMENT, _seen_by_reader),
    (
        "emr.job",
        "a job run of EMR Serverless",
        f"{_NO_DEPLOYMENT}, or it has no application of EMR Serverless",
        _job,
    ),
)
_WAITS, _NO_WAIT = "how long `create` waited", "`create` has not waited for it"
_OF_DEPLOYMENT: tuple[_Row, ...] = (
    (
        "snowflake.dotted_name",
        "names with periods in CATALOG_TABLE_NAME",
        "no topic whose name has a period has a table in Snowflake",
        _dotted_names,
    ),
    ("snowflake.refresh", "REFRESH by another role", "no linked database has a table", _refresh),
    ("tableflow.catalog", "catalog integrations of Tableflow", _NO_DEPLOYMENT, _catalogs),
    (
        "tableflow.delete_files",
        "delete files of Tableflow's upsert tables",
        "no upsert table of Tableflow exists",
        _delete_files,
    ),
    (
        "emr.merge",
        "a merge of an upsert view on EMR",
        "a merge writes to a table: run the graph, and see its first run",
        lambda context, facts: None,
    ),
    ("propagation.role_trust", _WAITS, _NO_WAIT, partial(_waited, MEASURED[:1])),
    ("propagation.integration", _WAITS, _NO_WAIT, partial(_waited, MEASURED[1:])),
    ("propagation.grants", _WAITS, _NO_WAIT, partial(_waited, ())),
)
