"""The resource graph: every resource of a deployment, what each one needs, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from topicberg.catalogs.snowflake.names import QUERY_ROLE, SnowflakeNames
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import dead_letter_spec
from topicberg_deploy.aws import emr
from topicberg_deploy.aws.athena import Workgroup
from topicberg_deploy.aws.bucket import Bucket, ComputeBucket, DerivedBucket
from topicberg_deploy.aws.glue import GlueDatabase, pipelines
from topicberg_deploy.aws.iam import (
    Policy,
    Role,
    confluent_trust,
    snowflake_policy,
    snowflake_trust,
    tableflow_policy,
)
from topicberg_deploy.aws.parameters import CONSUMER, PRODUCER, Parameters
from topicberg_deploy.confluent.connect import QUICKSTARTS, Connector
from topicberg_deploy.confluent.integrations import (
    GLUE,
    OPEN_CATALOG,
    PROVIDER_INTEGRATION,
    UNITY,
    UNITY_INTEGRATION,
    CatalogIntegration,
    ProviderIntegration,
)
from topicberg_deploy.confluent.kafka import Acl, KafkaTopic, RegistrySubject
from topicberg_deploy.confluent.keys import KeyKind, RotatingKey
from topicberg_deploy.confluent.organization import (
    Cluster,
    Environment,
    RoleBinding,
    SchemaRegistry,
    ServiceAccount,
)
from topicberg_deploy.confluent.tableflow import TableflowTopic
from topicberg_deploy.context import CLUSTER, ENVIRONMENT, READER, REGISTRY
from topicberg_deploy.costs import Cost, Quota
from topicberg_deploy.resource import Live, Resource
from topicberg_deploy.snowflake.integrations import (
    Integration,
    ReadingRole,
    RestIntegration,
    Volume,
)
from topicberg_deploy.snowflake.principals import (
    KEYS,
    OF_TOPICS,
    FutureGrant,
    Grant,
    NetworkPolicy,
    RoleGrant,
    SnowflakeRole,
    User,
    UserKeys,
    UserPolicy,
)
from topicberg_deploy.snowflake.storage import OWNER, Container, Warehouse, object_tags
from topicberg_deploy.snowflake.tables import IcebergTable, LinkedDatabase, LinkedTable

ACCOUNTS = {
    "app_manager": "creates topics and runs Tableflow",
    "app_consumer": "reads the topics",
    "app_producer": "writes to the topics",
    "app_connector": "writes what the source connectors make",
    "schema_registry": "reads and registers schemas",
    "app_reader": "reads what a plan compares, and no records",
}
"""Service account → what it is for."""
SUBJECTS = "/subject=*"
OWN_PREFIX = "topicberg"
"""Of the topics, groups and transactional ids that topicberg itself uses."""
ROLE_TO_SYSADMIN = "snowflake/role_grant/to_sysadmin"
CONNECTOR_ACL = "confluent/acl/app_connector"
IAM_ROLE = "aws/role/snowflake"
LINKED_INTEGRATION = "snowflake/linked_integration"
LINKED_DATABASE = "snowflake/linked_database"


_BINDINGS = (
    ("cluster_admin", "app_manager", "CloudClusterAdmin", CLUSTER, ""),
    # Tableflow validates schemas with the rights of whoever enables it.
    ("tableflow_subjects", "app_manager", "DeveloperRead", REGISTRY, SUBJECTS),
    ("subjects_read", "schema_registry", "DeveloperRead", REGISTRY, SUBJECTS),
    ("subjects_write", "schema_registry", "DeveloperWrite", REGISTRY, SUBJECTS),
    # A plan, which pull requests start, reads no key that may change something.
    ("reader_tables", "app_reader", "Operator", CLUSTER, ""),
    ("reader_subjects", "app_reader", "DeveloperRead", REGISTRY, SUBJECTS),
)
"""Name, service account, role, what it is on, and the pattern there."""
_ACLS = (
    ("app_connector", "app_connector", "DESCRIBE", "CLUSTER", "kafka-cluster"),
    # What Dagster's processes need beside the topics of the specs.
    ("own_group", "app_consumer", "READ", "GROUP", OWN_PREFIX),
    ("own_topics_read", "app_consumer", "READ", "TOPIC", OWN_PREFIX),
    ("own_topics_create", "app_producer", "CREATE", "TOPIC", OWN_PREFIX),
    ("own_topics_write", "app_producer", "WRITE", "TOPIC", OWN_PREFIX),
    ("own_transactions", "app_producer", "WRITE", "TRANSACTIONAL_ID", OWN_PREFIX),
    ("topic_configs", "app_producer", "DESCRIBE_CONFIGS", "TOPIC", "*"),
    ("reader_cluster", "app_reader", "DESCRIBE", "CLUSTER", "kafka-cluster"),
    ("reader_topics", "app_reader", "DESCRIBE_CONFIGS", "TOPIC", "*"),
)
"""Name, service account, operation, kind and name of what it is on."""


def account(role: str) -> str:
    """Resource key of a service account."""
    return f"confluent/service_account/{role}"


def binding(name: str) -> str:
    return f"confluent/role_binding/{name}"


def resources(config: Settings, specs: list[TopicSpec]) -> list[Resource]:
    """Every resource of the deployment, and those that a spec has turned off."""
    names = Names(config.prefix)
    snowflake = list(_snowflake(names, config))
    return [
        *_organization(names, config),
        *_keys(names),
        *_aws(names, config),
        *_namespaces(names, specs),
        *_compute(names, config),
        *_integrations(names, config, specs),
        *snowflake,
        *object_tags(snowflake, config),
        *(resource for spec in specs for resource in _topic(spec, names, config)),
    ]


def _organization(names: Names, config: Settings) -> Iterator[Resource]:
    environment, cluster = config.existing_environment, config.existing_cluster
    yield Environment(ENVIRONMENT, environment or names.environment, given=environment)
    within = (ENVIRONMENT,)
    type_ = config.cluster_type
    yield Cluster(CLUSTER, cluster or names.cluster, within, within, type=type_, given=cluster)
    yield SchemaRegistry(REGISTRY, "of the environment", (ENVIRONMENT, CLUSTER), within)
    for role, purpose in ACCOUNTS.items():
        name, description = names.service_account(role), f"topicberg: {purpose}"
        yield ServiceAccount(account(role), name, description=description)
    for name, who, role, on, pattern in _BINDINGS:
        yield _binding(name, who, role, on, pattern=pattern)
    yield _acl("consumer_group", "app_consumer", "READ", "GROUP", names.prefix, prefixed=True)
    for name, who, operation, of, on in _ACLS:
        yield _acl(name, who, operation, of, on, prefixed=on == OWN_PREFIX)


def _acl(
    name: str, role_of: str, operation: str, of: str, on: str, *, prefixed: bool = False
) -> Acl:
    within = (account(role_of), CLUSTER)
    return Acl(
        f"confluent/acl/{name}",
        f"{operation} of {role_of} on {of} {on}{'*' if prefixed else ''}",
        (*within, "key/kafka_app_manager"),
        within,
        account=account(role_of),
        operation=operation,
        of=of,
        on=on,
        prefixed=prefixed,
    )


def _binding(name: str, role_of: str, role: str, on: str, *, pattern: str = "") -> RoleBinding:
    needs, title = (account(role_of), on), f"{role} of {role_of} on {on}{pattern}"
    return RoleBinding(
        binding(name), title, needs, needs, account=needs[0], role=role, on=on, pattern=pattern
    )


def _keys(names: Names) -> Iterator[Resource]:
    def key(name: str, role: str, of: KeyKind, path: str, *needs: str) -> RotatingKey:
        owner, secret = account(role), names.confluent_secret(path)
        return RotatingKey(f"key/{name}", secret, (owner, *needs), account=owner, of=of)

    admin = binding("cluster_admin")
    for role in ("app_manager", "app_consumer", "app_producer"):
        rights = (admin,) if role == "app_manager" else ()  # the others have access lists
        path = f"kafka_cluster/{role}/python_client"
        yield key(f"kafka_{role}", role, "kafka", path, CLUSTER, *rights)
    path = "schema_registry_cluster/python_client"
    yield key(
        "schema_registry",
        "schema_registry",
        "schema_registry",
        path,
        REGISTRY,
        binding("subjects_read"),
        binding("subjects_write"),
    )
    yield key("tableflow", "app_manager", "tableflow", "tableflow", CLUSTER, admin)
    kinds: tuple[tuple[KeyKind, str, str], ...] = (
        ("kafka", CLUSTER, CLUSTER),
        ("schema_registry", REGISTRY, binding("reader_subjects")),
        ("tableflow", CLUSTER, binding("reader_tables")),
    )
    for of, on, right in kinds:
        yield key(f"reader_{of}", "app_reader", of, f"{READER}/{of}", on, right)


def _aws(names: Names, config: Settings) -> Iterator[Resource]:
    given = config.existing_buckets
    yield Bucket("aws/bucket", "of the topics' tables", given=given)
    yield DerivedBucket("aws/derived_bucket", "of the derived tables", given=given)
    within = () if config.tableflow_namespace else (CLUSTER,)  # else its name is the cluster's id
    yield GlueDatabase("aws/glue_database", "of the cluster", within, within)
    yield Policy(
        "aws/policy/tableflow",
        names.tableflow_policy,
        (CLUSTER, "aws/bucket"),
        wanted=config.iam.tableflow_role_arn is None,
        grants=tableflow_policy,
    )
    yield Role(
        "aws/role/tableflow",
        _role(config.iam.tableflow_role_arn, names.tableflow_role),
        ("aws/policy/tableflow", PROVIDER_INTEGRATION),
        trust=confluent_trust,
        policy="aws/policy/tableflow",
        given=config.iam.tableflow_role_arn,
    )
    consumer = {**CONSUMER, "auto.offset.reset": config.auto_offset_reset}
    for client, values in (("consumer", consumer), ("producer", PRODUCER)):
        path = names.confluent_secret(f"{client}_kafka_client")
        yield Parameters(f"aws/ssm/{client}", path, values=values)


def _compute(names: Names, config: Settings) -> Iterator[Resource]:
    """What computes the derived tables, unless there is a Spark elsewhere."""
    bucket, wanted = "aws/compute_bucket", config.on_emr
    in_cloud = config.deployment == "cloud"  # the local stack computes by itself
    yield ComputeBucket(bucket, "of code, logs and query results", wanted=in_cloud)
    yield Workgroup("aws/athena_workgroup", names.athena_workgroup, (bucket,), wanted=config.athena)
    uploads = wanted and in_cloud and config.emr.image is None
    yield emr.UploadedCode(emr.CODE_KEY, "of this project", (bucket,), (bucket,), uploads)
    yield emr.Application(emr.APPLICATION, names.emr_application, (bucket,), wanted=wanted)
    yield Policy(
        emr.POLICY,
        names.emr_policy,
        (CLUSTER, "aws/bucket", "aws/derived_bucket", bucket),
        wanted=wanted and config.iam.emr_role_arn is None,
        grants=emr.emr_policy,
    )
    yield Role(
        emr.ROLE,
        _role(config.iam.emr_role_arn, names.emr_role),
        (emr.POLICY, emr.APPLICATION),
        wanted=wanted,
        trust=emr.emr_trust,
        policy=emr.POLICY,
        given=config.iam.emr_role_arn,
    )


def _role(given: str | None, own: str) -> str:
    """The name of a role that exists already, else of the one that is created."""
    return given.rpartition("/")[2] if given else own


def _namespaces(names: Names, specs: list[TopicSpec]) -> Iterator[Resource]:
    """Of derived tables, which Spark writes."""
    for pipeline in pipelines(specs):
        name = names.namespace(pipeline)
        key, of = f"aws/pipeline_database/{pipeline}", f"Tables derived in pipeline {pipeline}"
        yield GlueDatabase(key, name, database=name, description=of)


def _integrations(names: Names, config: Settings, specs: list[TopicSpec]) -> Iterator[Resource]:
    role, name = config.iam.tableflow_role_arn or names.tableflow_role, names.provider_integration
    yield ProviderIntegration(PROVIDER_INTEGRATION, name, (ENVIRONMENT,), (ENVIRONMENT,), role=role)
    yield _binding("provider_integration", "app_manager", "ResourceOwner", PROVIDER_INTEGRATION)
    yield CatalogIntegration(
        "confluent/catalog_integration",
        names.catalog_integration,
        (
            CLUSTER,
            "key/tableflow",
            PROVIDER_INTEGRATION,
            binding("provider_integration"),
            "aws/role/tableflow",
            "aws/glue_database",
        ),
        (CLUSTER, PROVIDER_INTEGRATION),
        catalog=OPEN_CATALOG if config.snowflake_catalog == "open_catalog" else GLUE,
        # A given role: without its trust, Confluent fails the integration for good.
        waits_for="aws/role/tableflow",
    )
    # After its tables: until there is one, it syncs nothing. It keeps no table from Glue.
    tables = [f"confluent/tableflow/{spec.asset_name}" for spec in specs if spec.has_delta_table]
    yield CatalogIntegration(
        UNITY_INTEGRATION,
        names.unity_integration,
        (CLUSTER, "key/tableflow", *tables),
        (CLUSTER,),
        wanted=config.unity.workspace_url is not None,
        catalog=UNITY,
    )


def _topic(spec: TopicSpec, names: Names, config: Settings) -> Iterator[Resource]:
    name = spec.asset_name
    topic = f"confluent/topic/{name}"
    if not spec.external:
        yield KafkaTopic(
            topic, spec.name, (CLUSTER, "key/kafka_app_manager"), (CLUSTER,), spec=spec
        )
        for role, right in (("app_producer", "WRITE"), ("app_consumer", "READ")):
            yield _acl(f"{name}_{role}", role, right, "TOPIC", spec.name)
    before = [] if spec.external else [topic]
    for part, subject, schema, path in (
        ("value", spec.value_subject, spec.value_schema, spec.schema_path("value", config)),
        ("key", spec.key_subject, spec.key, spec.schema_path("key", config)),
    ):
        if path is None or not schema.is_registered:
            continue
        before.append(f"confluent/subject/{name}_{part}")
        needs = [REGISTRY, "key/schema_registry"]
        if schema.compatibility:  # registering takes less than setting the level
            owner, on = f"{name}_{part}_owner", f"/subject={subject}"
            yield _binding(owner, "schema_registry", "ResourceOwner", REGISTRY, pattern=on)
            needs.append(binding(owner))
        yield RegistrySubject(
            before[-1],
            subject,
            tuple(needs),
            (REGISTRY,),
            file=path,
            format=schema.format,
            message=schema.message,
            compatibility=schema.compatibility,
        )
    quickstart = QUICKSTARTS.get(spec.generator.kind) if spec.generator else None
    has_source = bool(quickstart) and config.generators
    dead_letters = [*_dead_letters(spec)]
    yield from dead_letters
    if quickstart:
        for resource in _connector(spec, names, quickstart, before):
            yield replace(resource, wanted=has_source)
    if has_source:
        before.append(f"confluent/connector/{name}")
    in_bucket = spec.tableflow.storage == "bucket"
    within = ("aws/bucket", "confluent/catalog_integration") if in_bucket else ()
    yield TableflowTopic(
        f"confluent/tableflow/{name}",
        spec.name,
        (
            *before,
            "key/tableflow",
            *within,
            binding("tableflow_subjects"),
            *(resource.key for resource in dead_letters),
        ),
        (CLUSTER, PROVIDER_INTEGRATION) if in_bucket else (CLUSTER,),
        spec.tableflow.enabled,
        spec=spec,
        has_source=has_source,
    )
    tables = _linked_table if config.snowflake_linked_database else _snowflake_table
    yield from tables(spec, config, has_source=has_source)


def _dead_letters(spec: TopicSpec) -> Iterator[Resource]:
    """Yield the rights to write dead letters, of who enables Tableflow."""
    if spec.tableflow.error_handling.mode == "LOG":
        name, target, owner = spec.asset_name, dead_letter_spec(spec), "app_manager"
        yield _acl(f"{name}_dead_letters", owner, "WRITE", "TOPIC", target.name)
        on = f"/subject={target.value_subject}"
        yield _binding(f"{name}_dead_letters", owner, "DeveloperWrite", REGISTRY, pattern=on)


def _connector(
    spec: TopicSpec, names: Names, quickstart: str, before: list[str]
) -> Iterator[Resource]:
    name, generator = spec.asset_name, spec.generator
    assert generator is not None  # noqa: S101  it has a quickstart
    who, subject = "app_connector", f"/subject={spec.value_subject}"
    acl = _acl(f"{name}_connector", who, "WRITE", "TOPIC", spec.name)
    right = _binding(f"{name}_connector_subject", who, "DeveloperWrite", REGISTRY, pattern=subject)
    yield from (acl, right)
    yield Connector(
        f"confluent/connector/{name}",
        names.connector(spec.name),
        (CLUSTER, account(who), CONNECTOR_ACL, *before, acl.key, right.key),
        (CLUSTER,),
        topic=spec.name,
        quickstart=quickstart,
        format=spec.value_schema.format,
        rate=generator.rate,
        tasks=generator.tasks,
        account=account(who),
    )


def _snowflake(names: Names, config: Settings) -> Iterator[Resource]:
    called, owner = SnowflakeNames.of(config), config.snowflake_owner_role or OWNER
    user, reader, asker = map(config.snowflake_name, ("user", "system_admin_role", QUERY_ROLE))
    schema = (called.database, called.schema)
    roles = (
        ("security_admin", config.snowflake_name("security_admin_role"), "Security Admin"),
        ("system_admin", reader, "System Admin"),
        ("query", asker, "Query"),
    )

    yield Warehouse("snowflake/warehouse", called.warehouse)
    # Tables go with their database, before what they use: Snowflake keeps that while one uses it.
    used = ("snowflake/volume", "snowflake/derived_volume", "snowflake/integration")
    yield Container(
        "snowflake/database",
        f"database {called.database}",
        (*used, ROLE_TO_SYSADMIN),
        of="DATABASE",
        path=schema[:1],
        comment="Database for Tableflow Kafka Topic data",
    )
    within = ("snowflake/database",)
    yield Container(
        "snowflake/schema",
        f"schema {'.'.join(schema)}",
        within,
        within,
        of="SCHEMA",
        path=schema,
        comment="Schema for Tableflow Kafka Topic data",
    )
    for key, role, purpose in roles:
        yield SnowflakeRole(f"snowflake/role/{key}", role, comment=f"{purpose} role for {user}")
    yield UserKeys(KEYS, names.snowflake_secret, user=user)
    properties = {
        "DEFAULT_WAREHOUSE": called.warehouse,
        "DEFAULT_ROLE": reader,
        "DEFAULT_NAMESPACE": f"{called.database}.{called.schema}",
    }
    yield User("snowflake/user", user, (KEYS, "snowflake/warehouse"), properties=properties)
    networks = tuple(filter(None, config.snowflake_allowed_ips.split(",")))
    policy, wanted = config.snowflake_name("network_policy"), bool(networks)
    needs: tuple[str, ...] = ("snowflake/network_policy", "snowflake/user")
    yield NetworkPolicy(needs[0], policy, wanted=wanted, allowed=networks)
    key, name = "snowflake/user_network_policy", f"{policy} of {user}"
    yield UserPolicy(key, name, needs, needs[1:], wanted, user=user, policy=policy)
    for key, role, _ in roles:
        both = (f"snowflake/role/{key}", "snowflake/user")
        name = f"{role} to {user}"
        yield RoleGrant(f"snowflake/role_grant/{key}", name, both, both, role=role, grantee=user)
    # What the owner of a derived table may do with it, the admin may do too, e.g. drop it.
    alone = ("snowflake/role/system_admin",)
    name = f"{reader} to {owner}"
    yield RoleGrant(ROLE_TO_SYSADMIN, name, alone, alone, role=reader, to="ROLE", grantee=owner)

    yield Volume("snowflake/volume", called.volume, (CLUSTER, "aws/bucket"))
    needs = (CLUSTER, "aws/derived_bucket")
    yield Volume("snowflake/derived_volume", called.derived_volume, needs, derived=True)
    yield Integration("snowflake/integration", called.integration, (CLUSTER,))
    rest = config.snowflake_catalog in ("open_catalog", "iceberg_rest")
    needs, key = (CLUSTER, "confluent/catalog_integration"), "snowflake/rest_integration"
    yield RestIntegration(key, called.rest_integration, needs, (CLUSTER,), rest)
    linked = config.snowflake_linked_database
    begin = (LINKED_INTEGRATION, called.linked_integration)
    if rest:
        yield RestIntegration(*begin, needs, (CLUSTER,), linked, linked=True)
    else:
        yield Integration(*begin, (CLUSTER,), (CLUSTER,), linked, linked=True)
    follows, within = (LINKED_INTEGRATION, "snowflake/volume", IAM_ROLE), (LINKED_INTEGRATION,)
    yield LinkedDatabase(LINKED_DATABASE, called.linked_database, follows, within, linked)
    key, reads = "aws/policy/snowflake", (CLUSTER, "aws/bucket", "aws/derived_bucket")
    creates_role = config.iam.snowflake_role_arn is None
    yield Policy(key, names.snowflake_policy, reads, wanted=creates_role, grants=snowflake_policy)
    by_glue = linked and not rest
    yield ReadingRole(
        IAM_ROLE,
        _role(config.iam.snowflake_role_arn, names.snowflake_role),
        # Snowflake verifies that it reads the database.
        (key, *used, "aws/glue_database", *((LINKED_INTEGRATION,) if by_glue else ())),
        trust=snowflake_trust,
        policy=key,
        given=config.iam.snowflake_role_arn,
        volumes=(called.volume, called.derived_volume),
        integrations=(
            *((called.integration,) if config.snowflake_catalog == "glue_rest" else ()),
            *((called.linked_integration,) if by_glue else ()),
        ),
    )
    volume = ("EXTERNAL VOLUME", (called.volume,), "snowflake/volume")
    integration = ("INTEGRATION", (called.integration,), "snowflake/integration")
    usable: tuple[tuple[str, tuple[str, ...], str], ...] = (
        ("WAREHOUSE", (called.warehouse,), "snowflake/warehouse"),
        ("DATABASE", schema[:1], "snowflake/database"),
        ("SCHEMA", schema, "snowflake/schema"),
        volume,
        ("EXTERNAL VOLUME", (called.derived_volume,), "snowflake/derived_volume"),
        integration,
    )
    holder = "snowflake/role/system_admin"
    for on, target, needed in usable:
        yield _grant(reader, "USAGE", on, target, needed, holder)
        if on in ("WAREHOUSE", "DATABASE", "SCHEMA"):
            yield _grant(asker, "USAGE", on, target, needed, "snowflake/role/query")
    # The user itself creates the derived tables; SYSADMIN creates the topics', which use the rest.
    yield _grant(reader, "CREATE ICEBERG TABLE", "SCHEMA", schema, "snowflake/schema", holder)
    yield _grant(owner, "USAGE", *volume, who="sysadmin")
    yield _grant(owner, "USAGE", *integration, who="sysadmin")
    other = ("INTEGRATION", (called.rest_integration,), "snowflake/rest_integration")
    yield replace(_grant(reader, "USAGE", *other, holder), wanted=rest)
    yield replace(_grant(owner, "USAGE", *other, who="sysadmin"), wanted=rest)
    for role, key in _readers(config):
        usage = _grant(role, "USAGE", "DATABASE", (called.linked_database,), LINKED_DATABASE, key)
        yield replace(usage, wanted=linked)
        for privilege, on in (("USAGE", "SCHEMA"), ("SELECT", "ICEBERG TABLE")):
            yield FutureGrant(
                f"{usage.key}_future_{on.lower().replace(' ', '_')}s",
                f"{privilege} on future {on.lower()}s in {called.linked_database} to {role}",
                usage.needs,
                usage.within,
                # Another role than Snowflake's own lacks the right to make it.
                linked and config.snowflake_owner_role is None,
                role=role,
                privilege=privilege,
                on=on,
                target=usage.target,
            )


def _grant(
    role: str, privilege: str, on: str, target: tuple[str, ...], *needs: str, who: str = "reader"
) -> Grant:
    """
    :param needs: they begin with the key of what the privilege is on
    :param who: the role's part of the key
    """
    name = ".".join(target)
    if role.endswith(f"_{QUERY_ROLE}".upper()):
        who = "query"
    action = "create_tables_in_" if privilege.startswith("CREATE") else ""
    return Grant(
        f"snowflake/grant/{who}/{action}{needs[0].removeprefix('snowflake/')}",
        f"{privilege} on {on.lower()} {name} to {role}",
        needs,
        needs,
        role=role,
        privilege=privilege,
        on=on,
        target=target,
    )


def _snowflake_table(spec: TopicSpec, config: Settings, *, has_source: bool) -> Iterator[Resource]:
    called, wanted = SnowflakeNames.of(config), spec.has_table(config)
    table, name = f"snowflake/table/{spec.asset_name}", spec.snowflake_name
    # By which Snowflake finds the topics' tables.
    integration = "integration" if config.topics_in_glue else "rest_integration"
    within = ("snowflake/schema", "snowflake/volume", f"snowflake/{integration}")
    needs = (
        *within,
        "snowflake/grant/sysadmin/volume",
        f"snowflake/grant/sysadmin/{integration}",
        f"confluent/tableflow/{spec.asset_name}",
        IAM_ROLE,
        "aws/glue_database",
        "snowflake/warehouse",
    )
    yield IcebergTable(table, name, needs, within, wanted, spec=spec, has_source=has_source)
    target = (called.database, called.schema, name)
    for reader, role in _readers(config):
        select = _grant(reader, "SELECT", "ICEBERG TABLE", target, table, role)
        yield replace(select, wanted=wanted)


def _readers(config: Settings) -> list[tuple[str, str]]:
    """Return the roles that read the topics' tables, each with its key."""
    return [
        (config.snowflake_name("system_admin_role"), "snowflake/role/system_admin"),
        (config.snowflake_name(QUERY_ROLE), "snowflake/role/query"),
    ]


def _linked_table(spec: TopicSpec, config: Settings, *, has_source: bool) -> Iterator[Resource]:
    """The table as Snowflake discovers it, and what the reader needs to query it. Tables that were
    created one by one stay: they hold no data, and their readers move when they want to.
    """
    if not spec.has_table(config):
        return
    table = f"snowflake/table/{spec.asset_name}"
    name = spec.glue_name if config.topics_in_glue else spec.name
    path = (SnowflakeNames.of(config).linked_database, OF_TOPICS, name)
    within = (CLUSTER, LINKED_DATABASE)
    needs = (*within, f"confluent/tableflow/{spec.asset_name}", "aws/glue_database")
    yield LinkedTable(table, name, needs, within, spec=spec, has_source=has_source)
    for reader, role in _readers(config):
        usage = _grant(reader, "USAGE", "SCHEMA", path[:2], table, CLUSTER, role)
        yield replace(usage, key=f"{usage.key}_schema")
        yield _grant(reader, "SELECT", "ICEBERG TABLE", path, table, CLUSTER, role)


def uncomputed(
    config: Settings, specs: Iterable[TopicSpec], derived: Iterable[str] = ()
) -> list[str]:
    """Return what is left out of the graph of a deployment without Spark Connect; empty: nothing.

    EMR Serverless computes tables: its job runs reach only AWS, and Dagster sends it no queries.

    :param derived: names of the derived tables that are left out
    """
    if config.has_spark:
        return []
    enabled = [spec for spec in specs if spec.tableflow.enabled]
    left_out = {
        "published topics": [spec.name for spec in specs if spec.publishes],
        "histories": [f"{spec.asset_name}_history" for spec in enabled if spec.history],
        "derived tables that read a history": list(derived),
    }
    lines = [f"{kind}: {', '.join(sorted(names))}" for kind, names in left_out.items() if names]
    if not config.on_emr:
        lines.insert(0, "derived tables and upsert views")
    return [*lines, "charts of derived tables, and checks of their rows that are functions"]


def costs(
    graph: Iterable[Resource], config: Settings, live: Mapping[str, Live]
) -> list[tuple[Resource, Cost]]:
    """Return what the wanted resources cost a month that are not free.

    :param live: what exists, by key: a cluster keeps its type
    """
    return [
        (resource, cost)
        for resource in graph
        if resource.wanted and (cost := resource.cost(config, live.get(resource.key))) is not None
    ]


def usage(graph: Iterable[Resource], config: Settings) -> Counter[Quota]:
    """Return how much of each quota the wanted resources take, for those that they take."""
    used = Counter[Quota]()
    for resource in graph:
        if resource.wanted and resource.quota is not None:
            used[resource.quota] += resource.quota_units(config)
    return used
