"""``/tableflow/v1``: regions, and the topics that Tableflow is enabled on."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Literal

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
    integrations,
    roles,
    subjects,
)
from topicberg_local.emulators.confluent.account import CATALOG, TABLE, timestamp
from topicberg_local.emulators.confluent.errors import (
    Refusal,
    bad_request,
    conflict,
    invalid,
    not_found,
    unsupported,
)
from topicberg_local.emulators.confluent.materialization import takes, trust_problem
from topicberg_local.emulators.confluent.operation import (
    Call,
    HttpResponse,
    InCluster,
    KeyKind,
    Operation,
)
from topicberg_local.emulators.confluent.tableflow_bodies import (
    ByobAws,
    ListRegions,
    ListTables,
    NewSpec,
    NewTable,
    Options,
    SpecChange,
    TableChange,
)
from topicberg_local.emulators.store import Stored

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
    status: dict[str, Any] = {
        "phase": phase,
        "write_mode": stored.properties.get("write_mode") or engine_status.write_mode,
        "catalog_sync_statuses": [
            _sync(call, catalog, topic)
            for catalog in account.store.all(CATALOG)
            if takes(catalog, stored)
        ],
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
    account = call.account
    cluster = stored.name[0]
    environment = stored.properties["environment"]
    status, suspended = _status(call, stored)
    spec = dict(stored.properties["spec"])
    storage = {**spec["storage"], "bucket_region": stored.properties["region"]}
    if location := call.tables.location(stored):
        storage["table_path"] = location
    within = (f"environment={environment}", f"cloud-cluster={cluster}", "tableflow-topic")
    shown = account.document(
        VERSION,
        "TableflowTopic",
        stored,
        PATH,
        *within,
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
        raise bad_request(f"error_handling.target {target} contains a period.")
    every.pop("record_failure_strategy", None)
    return every if mode == "LOG" else {**every, "record_failure_strategy": mode}


def find_cluster(call: Call, environment: str, name: str) -> Stored:
    """:raises Refusal: no such cluster, or one that Tableflow is not on"""
    cluster = clusters.require(call.account, environment, name)
    clusters.require_main(call.account, name, "Tableflow")
    return cluster


def _require(call: Call, environment: str, cluster: str) -> Stored:
    topic = call.path["display_name"]
    missing = not_found(f"Tableflow topic {topic}")
    found = call.account.require(TABLE, (cluster, topic), missing)
    if found.properties["environment"] != environment:
        raise missing
    return found


def _checked_storage(call: Call, cluster: Stored, spec: NewSpec) -> ByobAws:
    """Where the table will be.

    :raises Refusal: the topic or its storage are not as they must be
    """
    account, topic = call.account, spec.display_name
    if not isinstance(spec.storage, ByobAws):
        raise unsupported(f"storage of kind {spec.storage.kind}; there is ByobAws")
    if topic not in broker.names(account, cluster.name[0]):
        raise not_found(f"Topic {topic}")
    registry = account.endpoints().schema_registry_client()
    specs = {
        topic_spec.name: topic_spec.value_subject for topic_spec in check_topics(account.config)[0]
    }
    value_subject = specs.get(topic, f"{topic}-value")
    if value_subject not in registry.get_subjects():
        raise bad_request(
            f"Schemaless topic detected for topic {topic}. Schemaless topics are not supported."
            " Please specify a value schema."
        )
    demand(call, spec, value_subject)
    if spec.storage.bucket_name != account.config.bucket:
        raise unsupported(f"a bucket other than {account.config.bucket}: the engine writes there")
    if cluster.properties["spec"]["region"] != account.config.aws_region:
        raise bad_request(
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
        integration = integrations.find(account, environment, spec.storage.provider_integration_id)
        if integration is None:
            raise not_found(f"Provider integration {spec.storage.provider_integration_id}")
        owners = ("ResourceOwner", "Assigner", *roles.ADMINS)
        roles.demand(account, principal, owners, integrations.crn(account, integration))
    registry = subjects.of_environment(account, environment)
    if not subjects.may(account, registry, principal, subject, "Read"):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            f"{principal} is not authorized: it may not read the subject {subject}",
            "forbidden",
        )


def _create(call: Call) -> HttpResponse:
    spec: NewSpec = call.body.spec
    account = call.account
    cluster = find_cluster(call, spec.environment.id, spec.kafka_cluster.id)
    if spec.suspended:
        raise invalid("A topic can only be resumed by the API.", "/spec/suspended")
    name = (cluster.name[0], spec.display_name)
    if account.store.get(TABLE, name):
        raise conflict(
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
    account = call.account
    endpoints = account.endpoints()
    catalog = endpoints.catalog(account.config)
    identifier = (account.config.topics_namespace, name)
    if (table := find_table(catalog, identifier)) is None:
        return
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
    config = call.account.config
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
        control.enable(config, topic, options, mode, discovered=discovered)
    except SpecError as error:
        raise unsupported(error.message) from None
    return mode.upper()


def _list(call: Call) -> HttpResponse:
    query: ListTables = call.query
    find_cluster(call, query.environment, query.kafka_cluster)
    topics = call.account.find(
        TABLE,
        lambda document: (
            document["cluster"] == query.kafka_cluster
            and (
                not query.table_formats
                or bool({*query.table_formats} & {*document["spec"]["table_formats"]})
            )
        ),
    )
    return call.page(topics, VERSION, "TableflowTopic", _document)


def _get(call: Call) -> HttpResponse:
    query: InCluster = call.query
    return HttpResponse(_document(call, _require(call, query.environment, query.kafka_cluster)))


def _change(call: Call) -> HttpResponse:
    change: SpecChange = call.body.spec
    account = call.account
    given = change.model_fields_set
    cluster = change.kafka_cluster.id if "kafka_cluster" in given else account.config.cluster_id
    stored = _require(call, change.environment.id, cluster)
    topic = stored.name[1]
    if change.suspended:
        raise invalid("A topic can only be resumed by the API.", "/spec/suspended")
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
    return HttpResponse(_document(call, stored))


def _delete(call: Call) -> HttpResponse:
    query: InCluster = call.query
    stored = _require(call, query.environment, query.kafka_cluster)
    control.disable(call.account.config, stored.name[1])
    call.account.store.delete(TABLE, [stored.name])
    return HttpResponse()


def _regions(call: Call) -> HttpResponse:
    query: ListRegions = call.query
    regions = [Stored("region", (region,), created=0.0) for region in REGIONS]
    if query.cloud.upper() not in ("", "AWS"):
        regions = []

    def document(call: Call, stored: Stored) -> dict[str, Any]:
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

    return call.page(regions, VERSION, "Region", document)


def tableflow_operation(
    method: str, path: str, handler: Any, success: int = 200, **more: Any
) -> Operation:
    """An operation of Tableflow's API, which wants a key of its own."""
    return Operation(method, path, handler, success, key=KeyKind.TABLEFLOW, **more)


OPERATIONS = [
    tableflow_operation("GET", "/tableflow/v1/regions", _regions, query=ListRegions),
    tableflow_operation("POST", PATH, _create, 202, body=NewTable),
    tableflow_operation("GET", PATH, _list, query=ListTables),
    tableflow_operation("GET", PATH + "/{display_name}", _get, query=InCluster),
    tableflow_operation("PATCH", PATH + "/{display_name}", _change, body=TableChange),
    tableflow_operation("DELETE", PATH + "/{display_name}", _delete, 204, query=InCluster),
]
