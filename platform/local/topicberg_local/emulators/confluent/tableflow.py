"""``/tableflow/v1``: regions, and the topics that Tableflow is enabled on."""

from __future__ import annotations

import time
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from topicberg.errors import SpecError
from topicberg.iceberg.tables import find_table
from topicberg.kafka import topics as kafka
from topicberg.kafka.discovery import find_topic
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import read_status
from topicberg.tableflow.table.table import drop
from topicberg.tableflow.values.commit import committed
from topicberg.topics import check_topics
from topicberg.topics.discovery import FoundTopic
from topicberg_local.emulators.confluent import (
    broker,
    clusters,
    environments,
    errors,
    integrations,
    roles,
    subjects,
)
from topicberg_local.emulators.confluent.account import CATALOG, TABLE, timestamp
from topicberg_local.emulators.confluent.materialization import takes, trust_problem
from topicberg_local.emulators.confluent.operation import (
    Body,
    Call,
    HttpResponse,
    InCluster,
    KeyKind,
    Operation,
    Page,
    PageInCluster,
    Reference,
    ScopedReference,
    SpecBody,
    distinct,
)
from topicberg_local.emulators.store import Stored

DAY_MS = 86_400_000


def _at_least(minimum: int) -> Any:
    """A number that is sent as text: int64."""

    def check(text: str) -> str:
        if not text.isdecimal() or not minimum <= int(text) < 2**63:
            raise ValueError(f"{text!r} is no whole number from {minimum}")
        return text

    return AfterValidator(check)


class SuspendOrSkip(Body):
    mode: Literal["SUSPEND", "SKIP"]


class Log(Body):
    mode: Literal["LOG"]
    target: str = "error_log"


class Options(Body):
    """``config`` of a topic."""

    retention_ms: Annotated[str, _at_least(DAY_MS)] = str(7 * DAY_MS)
    data_retention_ms: Annotated[str, _at_least(30 * DAY_MS)] = ""
    record_failure_strategy: Literal["SUSPEND", "SKIP"] = "SUSPEND"
    error_handling: Annotated[SuspendOrSkip | Log, Field(discriminator="mode")] = SuspendOrSkip(
        mode="SUSPEND"
    )
    metadata_column_naming_scheme: Literal["DEFAULT", "PORTABLE"] = "DEFAULT"

    @model_validator(mode="after")
    def _one_of_two(self) -> Options:
        if {"record_failure_strategy", "error_handling"} <= self.model_fields_set:
            raise ValueError("error_handling and record_failure_strategy exclude each other")
        return self


class ByobAws(Body):
    kind: Literal["ByobAws"]
    bucket_name: str
    provider_integration_id: str


class Managed(Body):
    kind: Literal["Managed"]


Formats = Annotated[
    list[Literal["DELTA", "ICEBERG"]], Field(min_length=1), AfterValidator(distinct)
]


class NewSpec(Body):
    display_name: str
    environment: Reference
    kafka_cluster: ScopedReference
    storage: Annotated[ByobAws | Managed, Field(discriminator="kind")]
    table_formats: Formats = Field(default=["ICEBERG"])
    config: Options = Options()
    suspended: bool = False

    @model_validator(mode="after")
    def _delta_in_a_bucket(self) -> NewSpec:
        """https://docs.confluent.io/cloud/current/topics/tableflow/concepts/tableflow-storage.html"""
        if isinstance(self.storage, Managed) and "DELTA" in self.table_formats:
            raise ValueError("Delta tables are not supported in Confluent Managed Storage")
        return self


class SpecChange(Body):
    environment: Reference
    kafka_cluster: ScopedReference = ScopedReference(id="-")
    table_formats: Formats = Field(default=["ICEBERG"])
    config: Options = Options()
    suspended: bool = False


class ListTables(PageInCluster):
    table_formats: list[str] = Field(default=[], alias="spec.table_formats")


class ListRegions(Page):
    cloud: str = ""


VERSION = "tableflow/v1"
PATH = "/tableflow/v1/tableflow-topics"
REGIONS = ("us-east-1", "us-east-2", "us-west-2", "eu-west-1", "eu-central-1", "ap-southeast-2")


def _status(call: Call, stored: Stored) -> tuple[dict[str, Any], bool]:
    """``status``, and whether the topic is suspended."""
    account, topic = call.account, stored.name[1]
    engine_status = read_status(account.config, topic)
    phase, error, suspended = engine_status.phase, engine_status.error_message, False
    if phase == "FAILED" and not engine_status.suspended:
        phase = "PENDING"  # a service of the stack does not answer; the engine tries again
    if time.time() < stored.properties["since"] + account.delays.tableflow:
        phase, error = "PENDING", None
    elif problem := trust_problem(
        account, stored.properties["integration"], bucket=account.config.bucket
    ):
        phase, error = "FAILED", problem
    elif phase == "RUNNING" and engine_status.snapshot_id is None:  # no record yet
        phase = "PENDING"
    else:
        suspended = engine_status.suspended
    catalogs = account.store.all(CATALOG, lambda catalog: takes(catalog, stored))
    status: dict[str, Any] = {
        "phase": phase,
        "write_mode": stored.properties["write_mode"],
        "catalog_sync_statuses": [_sync(call, catalog, topic) for catalog in catalogs],
        "failing_table_formats": [
            table_format.model_dump() for table_format in engine_status.failing_table_formats
        ],
    }
    return status | ({"error_message": error} if error else {}), suspended


def _sync(call: Call, catalog: Stored, topic: str) -> dict[str, Any]:
    kind = catalog.properties["config"]["kind"]
    sync, error = call.tables.status(catalog, topic)[:2]
    if kind != "AwsGlue":
        sync, error = "FAILED", "the local stack does not sync to such a catalog"
    return {
        "catalog_integration_id": catalog.name[0],
        "catalog_type": {"AwsGlue": "AWS_GLUE"}.get(kind, kind.upper()),
        "sync_status": sync,
        "error_message": error,
    }


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    account, cluster = call.account, stored.name[0]
    environment = stored.properties["environment"]
    status, suspended = _status(call, stored)
    spec = dict(stored.properties["spec"])
    storage = {**spec["storage"], "bucket_region": stored.properties["region"]}
    if location := call.tables.location(stored):
        storage["table_path"] = location
    shown = account.document(
        VERSION,
        "TableflowTopic",
        stored,
        PATH,
        f"environment={environment}",
        f"cloud-cluster={cluster}",
        "tableflow-topic",
        spec={
            **spec,
            "suspended": suspended,
            "config": {**spec["config"], "enable_compaction": True, "enable_partitioning": True},
            "storage": storage,
            "environment": environments.reference(account, environment),
            "kafka_cluster": clusters.reference(account, environment, cluster),
        },
        status=status,
    )
    del shown["id"]
    return shown


def _options(options: Options, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """All options: those given, and the older ones or the defaults."""
    given = options.model_dump(exclude_unset=True)
    if "error_handling" in given:
        given["error_handling"] = options.error_handling.model_dump()  # with LOG's default target
    elif "record_failure_strategy" in given:
        given["error_handling"] = {"mode": given["record_failure_strategy"]}
    every = {**(before or Options().model_dump(exclude={"data_retention_ms"})), **given}
    mode, target = every["error_handling"]["mode"], every["error_handling"].get("target") or ""
    if mode == "LOG" and "." in target:
        raise errors.bad_request(f"error_handling.target {target} contains a period.")
    every.pop("record_failure_strategy", None)
    return every if mode == "LOG" else {**every, "record_failure_strategy": mode}


def find_cluster(call: Call, environment: str, name: str) -> Stored:
    """:raises Refusal: no such cluster, or one that Tableflow is not on"""
    return clusters.require_main(call.account, environment, name, "Tableflow")


def _require(call: Call, environment: str, cluster: str) -> Stored:
    topic = call.path["display_name"]
    missing = errors.not_found(f"Tableflow topic {topic}")
    return call.account.require(TABLE, (cluster, topic), missing, environment=environment)


def _checked_storage(call: Call, cluster: Stored, spec: NewSpec) -> ByobAws:
    """Where the table will be; raises Refusal: the topic or its storage are not as they must be."""
    account, topic = call.account, spec.display_name
    if not isinstance(spec.storage, ByobAws):
        raise errors.unsupported(f"storage of kind {spec.storage.kind}; there is ByobAws")
    if topic not in broker.names(account, cluster.name[0]):
        raise errors.not_found(f"Topic {topic}")
    registry = account.endpoints().schema_registry_client()
    value_subjects = {spec.name: spec.value_subject for spec in check_topics(account.config)[0]}
    value_subject = value_subjects.get(topic, f"{topic}-value")
    if value_subject not in registry.get_subjects():
        raise errors.bad_request(
            f"Schemaless topic detected for topic {topic}. Schemaless topics are not supported."
            " Please specify a value schema."
        )
    demand(call, spec, value_subject)
    if spec.storage.bucket_name != account.config.bucket:
        raise errors.unsupported(
            f"a bucket other than {account.config.bucket}: the engine writes there"
        )
    if cluster.properties["spec"]["region"] != account.config.aws_region:
        raise errors.bad_request(
            f"The bucket {spec.storage.bucket_name} is in {account.config.aws_region}, the cluster"
            f" in {cluster.properties['spec']['region']}; they must be in one region."
        )
    return spec.storage


def demand(call: Call, spec: NewSpec, subject: str) -> None:
    """
    :param subject: of the topic's values
    :raises Refusal: the owner of the key may not enable Tableflow on the topic
    """
    account, principal, environment = call.account, call.caller.principal, spec.environment.id
    above = clusters.crn(account, environment, spec.kafka_cluster.id)
    roles.demand(account, principal, roles.ADMINS, above)
    if isinstance(spec.storage, ByobAws):
        integration = integrations.require(
            account, environment, spec.storage.provider_integration_id
        )
        owners = ("ResourceOwner", "Assigner", *roles.ADMINS)
        roles.demand(account, principal, owners, integrations.crn(account, integration))
    registry = subjects.of_environment(account, environment)
    if not subjects.may(account, registry, principal, subject, "Read"):
        text = f"{principal} is not authorized: it may not read the subject {subject}"
        raise errors.Refusal(HTTPStatus.FORBIDDEN, text, "forbidden")


def _create(call: Call) -> HttpResponse:
    account = call.account
    spec: NewSpec = call.body.spec
    cluster = find_cluster(call, spec.environment.id, spec.kafka_cluster.id)
    if spec.suspended:
        raise errors.invalid("A topic can only be resumed by the API.", "/spec/suspended")
    name = (cluster.name[0], spec.display_name)
    if account.store.get(TABLE, name):
        raise errors.conflict(
            f"Tableflow is enabled on {spec.display_name} already.",
            f"{account.url}{PATH}/{spec.display_name}",
        )
    storage = _checked_storage(call, cluster, spec)
    _drop_earlier(call, spec.display_name)
    properties: dict[str, Any] = {
        "environment": spec.environment.id,
        "cluster": cluster.name[0],
        "integration": storage.provider_integration_id,
        "region": account.config.aws_region,
        "since": time.time(),
        "spec": {
            "display_name": spec.display_name,
            "storage": storage.model_dump(),
            "table_formats": spec.table_formats,
            "config": _options(spec.config),
        },
    }
    discovered = find_topic(spec.display_name, account.endpoints())
    if discovered is not None and discovered.value is not None:
        discovered.value.is_envelope = False  # Confluent's Tableflow does not read envelopes
    properties["write_mode"] = _enable(call, spec.display_name, properties["spec"], discovered)
    stored = Stored(TABLE, name, properties)
    account.store.put(stored)
    return HttpResponse(_document(call, stored), location=f"{PATH}/{spec.display_name}")


def _drop_earlier(call: Call, name: str) -> None:
    """Drop the table of an earlier topic of the name: Confluent's new table has a path of its own.

    The table of the topic that is there now stays: the stack's engine may be writing it.
    """
    config, endpoints = call.account.config, call.account.endpoints()
    catalog, identifier = endpoints.catalog(config), (config.topics_namespace, name)
    if table := find_table(catalog, identifier):
        committed_id = committed(table).topic_id
        if committed_id is not None and committed_id != kafka.topic_id(endpoints, name):
            drop(catalog, identifier)


def _enable(
    call: Call, topic: str, spec: dict[str, Any], discovered: FoundTopic | None = None
) -> str:
    """Turn the engine on for a topic, or let it go on with other options. Returns the write mode.

    :param discovered: what Kafka and the registry have of a topic that is new to Tableflow
    :raises Refusal: the engine cannot do what is asked
    """
    every = spec["config"]
    options = {
        "table_formats": spec["table_formats"],
        "error_handling": every["error_handling"],
        "metadata_column_naming_scheme": every["metadata_column_naming_scheme"],
        **{key: int(every[key]) for key in ("retention_ms", "data_retention_ms") if key in every},
    }
    policy = broker.cleanup_policy(call.account, topic)
    mode: Literal["append", "upsert"] = "upsert" if "compact" in policy else "append"
    try:
        control.enable(call.account.config, topic, options, mode, discovered=discovered)
    except SpecError as error:
        raise errors.unsupported(error.message) from None
    return mode.upper()


def _list(call: Call) -> dict[str, Any]:
    query: ListTables = call.query
    find_cluster(call, query.environment, query.kafka_cluster)
    formats = {*query.table_formats}
    topics = [
        table
        for table in call.account.find(TABLE, cluster=query.kafka_cluster)
        if not formats or formats & {*table.properties["spec"]["table_formats"]}
    ]
    return call.page(topics, VERSION, "TableflowTopic", _document)


def _get(call: Call) -> dict[str, Any]:
    return _document(call, _require(call, call.query.environment, call.query.kafka_cluster))


def _change(call: Call) -> dict[str, Any]:
    account = call.account
    change: SpecChange = call.body.spec
    given = change.model_fields_set
    cluster = change.kafka_cluster.id if "kafka_cluster" in given else account.config.cluster_id
    stored = _require(call, change.environment.id, cluster)
    topic = stored.name[1]
    if change.suspended:
        raise errors.invalid("A topic can only be resumed by the API.", "/spec/suspended")
    spec = dict(stored.properties["spec"])
    if "table_formats" in given:
        spec["table_formats"] = change.table_formats
    if "config" in given:
        spec["config"] = _options(change.config, spec["config"])
    if given & {"table_formats", "config"}:
        _enable(call, topic, spec)
    stored = account.change(stored, {"spec": spec})
    if "suspended" in given:
        control.resume(account.config, topic)
    return _document(call, stored)


def _delete(call: Call) -> None:
    stored = _require(call, call.query.environment, call.query.kafka_cluster)
    control.disable(call.account.config, stored.name[1])
    call.account.store.delete(TABLE, [stored.name])


def _regions(call: Call) -> dict[str, Any]:
    names = REGIONS if call.query.cloud.upper() in ("", "AWS") else ()
    regions = [Stored("region", (name,), created=0.0) for name in names]
    return call.page(regions, VERSION, "Region", _region)


def _region(call: Call, stored: Stored) -> dict[str, Any]:
    region = stored.name[0]
    return {
        "api_version": VERSION,
        "kind": "Region",
        "id": f"aws.{region}",
        "metadata": {
            "self": f"{call.account.url}/tableflow/v1/regions/aws.{region}",
            "created_at": timestamp(0),
            "updated_at": timestamp(0),
        },
        "cloud": "AWS",
        "region": region,
    }


tableflow_operation = partial(Operation, key=KeyKind.TABLEFLOW)
"""Makes an operation of Tableflow's API, which wants a key of its own."""
OPERATIONS = [
    tableflow_operation("GET", "/tableflow/v1/regions", _regions, query=ListRegions),
    tableflow_operation("POST", PATH, _create, 202, body=SpecBody[NewSpec]),
    tableflow_operation("GET", PATH, _list, query=ListTables),
    tableflow_operation("GET", PATH + "/{display_name}", _get, query=InCluster),
    tableflow_operation("PATCH", PATH + "/{display_name}", _change, body=SpecBody[SpecChange]),
    tableflow_operation("DELETE", PATH + "/{display_name}", _delete, 204, query=InCluster),
]
