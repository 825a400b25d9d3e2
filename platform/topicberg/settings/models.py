"""The models of settings: one for each concern, in the order of ``topicberg settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from topicberg.project import PREFIX, Project, project_root, read_project
from topicberg.settings.environment import Concern, EnvironmentSettings, FromJson, Group


class DeploymentSettings(EnvironmentSettings):
    """The project, its deployment, and what starts the names of its resources."""

    concern = Concern.DEPLOYMENT

    deployment: Literal["local", "cloud"] = "local"
    """The local stack, or the cloud accounts."""
    tableflow: Literal["confluent", "topicberg"] = "confluent"
    """Whose Tableflow writes the tables in the cloud deployment; the local stack always uses
    topicberg's engine."""
    project_root: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default_factory=project_root
    )
    """The folder of the project."""
    state_dir: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default_factory=lambda given: given["project_root"] / ".topicberg"
    )
    """State of the local stack and of Dagster."""
    prefix: str = Field(
        default_factory=lambda given: (
            read_project(given["project_root"]).prefix or "tableflow_kickstarter"
        ),
        pattern=PREFIX,
    )
    """Starts the name of every resource that topicberg creates; the longest of them is a service
    account's, for which Confluent allows 64 characters; by default the prefix or the name of the
    project."""

    @property
    def project(self) -> Project:
        """What the project says of itself."""
        return read_project(self.project_root)

    @property
    def topics_dir(self) -> Path:
        return self.project_root / self.project.topics

    @property
    def schemas_dir(self) -> Path:
        return self.project_root / self.project.schemas

    @property
    def own_engine(self) -> bool:
        """Whether topicberg's engine writes the tables."""
        return self.deployment == "local" or self.tableflow == "topicberg"


class EngineSettings(EnvironmentSettings):
    """How much topicberg's engine does at once, and with which others it shares the topics."""

    concern = Concern.ENGINE

    engine_workers: int = Field(default=8, ge=1, le=256)
    """Batches that the engine commits at once, each in a Spark session; all topics share them."""
    engine_processes: int = Field(default=2, ge=1, le=64)
    """Processes of the Tableflow engine that read and decode small batches, and the parts of large
    ones of a database's changes."""
    engine_process_memory_mb: int = Field(default=2048, ge=512)
    """Memory that a batch may take in a process of the engine, and a part of one in a task of
    Spark; a record that takes more is malformed."""
    engine_group: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """Engines with the same name here share the topics; all of them need the same specs; by default
    these are the engines of one cluster and bucket."""


class UnitySettings(Group):
    """A Databricks Unity Catalog."""

    workspace_url: str | None = Field(default=None, pattern=r"^https://[^/\s]+$")
    catalog: str | None = None
    client_id: str | None = None
    """The service principal as which Tableflow logs in to it."""
    client_secret: SecretStr | None = None
    """The OAuth secret of that service principal."""


class ConfluentSettings(DeploymentSettings):
    """The environment and the cluster of Confluent Cloud."""

    concern = Concern.CONFLUENT

    cluster_id: str = Field(default="lkc-local", pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Id of the Kafka cluster: namespace of its tables and name of its Glue database, unless they
    have a name of their own."""
    tableflow_namespace: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9_-]{0,254}$")
    """Namespace and Glue database of the topics' tables, in the place of the cluster's id; choose
    it before the first table exists."""
    cluster_type: Literal["Basic", "Standard"] | None = None
    """Of the Kafka cluster that `topicberg deploy` creates: Basic by default; a cluster that exists
    keeps its type, and a Basic one can become a Standard one."""
    existing_environment: str | None = Field(default=None, pattern=r"^env-[a-z0-9]+$")
    """Id of an environment of Confluent Cloud that exists: `topicberg deploy` neither changes nor
    deletes it."""
    existing_cluster: str | None = Field(default=None, pattern=r"^lkc-[a-z0-9]+$")
    """Id of a Kafka cluster in that environment, of any type: `topicberg deploy` neither changes
    nor deletes it."""
    unity: Annotated[UnitySettings, *FromJson] = Field(
        default=UnitySettings(), exclude=True, repr=False
    )
    """A Unity Catalog to which Confluent's Tableflow also publishes the topics' Delta tables:
    workspace_url, catalog, client_id, client_secret."""
    auto_offset_reset: Literal["earliest", "latest"] = "latest"
    """Where consumers begin that read their settings from Parameter Store."""
    generators: bool = True
    """`topicberg deploy` creates the Datagen connectors of topics with a generator."""

    @property
    def is_deployed(self) -> bool:
        """Whether the Kafka cluster is known: the default id is not one of a cloud deployment."""
        return self.deployment == "local" or "cluster_id" in self.model_fields_set

    @property
    def topics_namespace(self) -> str:
        """Namespace and Glue database of the topics' tables.
        https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/user-defined-namespaces.html"""
        return self.tableflow_namespace or self.cluster_id


TAG = r"^[\w .:/=+@-]{1,128}$"


def derived_from(bucket: str) -> str:
    """Return the default name of the derived bucket; S3's names have at most 63 characters."""
    return f"{bucket[:55]}-derived"


KmsKey = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+$")]
RoleArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/\S+$")]
Boundary = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::(\d{12}|aws):policy/\S+$")]


class KmsSettings(Group):
    """Keys of AWS KMS."""

    bucket_key_arn: KmsKey | None = None
    """`topicberg deploy` encrypts the buckets with it."""
    secrets_key_arn: KmsKey | None = None
    """`topicberg deploy` encrypts the secrets that it creates with it."""
    glue_key_arn: KmsKey | None = None
    """The account encrypts Glue's catalog with it."""


class IamSettings(Group):
    """The IAM roles that ``topicberg deploy`` creates, and those that exist, which it checks."""

    path: str = Field(default="/", pattern=r"^/([A-Za-z0-9._+=,@-]+/)*$")
    """Of roles and policies; choose it before the first `create`."""
    permissions_boundary_arn: Boundary | None = None
    tableflow_role_arn: RoleArn | None = None
    snowflake_role_arn: RoleArn | None = None
    emr_role_arn: RoleArn | None = None
    """For the job runs of EMR Serverless."""


class AwsSettings(DeploymentSettings):
    """The account, the buckets, keys and roles."""

    concern = Concern.AWS

    aws_region: str = "us-east-1"
    """Of all resources in AWS."""
    glue_schema_registry: str = Field(
        default="default-registry", pattern=r"^[a-zA-Z0-9_$#.-]{1,255}$"
    )
    """Registry of AWS Glue Schema Registry with the schemas that records name, of topics with
    framing glue; the default is that of AWS's serializers."""
    aws_account_id: str = Field(default="000000000000", pattern=r"^\d{12}$")
    """The number of the account; in the cloud, `topicberg deploy` finds it."""
    bucket: str = Field(
        default_factory=lambda fields: str(fields["prefix"]).replace("_", "-"),
        pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
    )
    """Holds the topics' tables; S3 takes no underscore, Snowflake no dot."""
    derived_bucket: str = Field(
        default_factory=lambda fields: (
            fields["bucket"]
            if (fields["deployment"], fields["tableflow"]) == ("cloud", "topicberg")
            else derived_from(fields["bucket"])
        ),
        pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
        validate_default=True,
    )
    """Holds the derived tables: Tableflow needs a bucket of its own."""
    existing_buckets: bool = False
    """The buckets of the tables exist: `topicberg deploy` creates, changes, empties and deletes
    none of them."""
    bucket_versioning: bool = False
    """`topicberg deploy` keeps the versions of deleted and overwritten objects for 30 days."""
    kms: Annotated[KmsSettings, *FromJson] = KmsSettings()
    """Keys of AWS KMS, whose use `topicberg deploy` permits to the roles that it creates:
    bucket_key_arn, secrets_key_arn, glue_key_arn."""
    iam: Annotated[IamSettings, *FromJson] = IamSettings()
    """The IAM roles that `topicberg deploy` creates: path, permissions_boundary_arn; those that
    exist: tableflow_role_arn, snowflake_role_arn, emr_role_arn."""
    tags: Annotated[
        dict[Annotated[str, Field(pattern=TAG)], Annotated[str, Field(max_length=256)]], *FromJson
    ] = Field(default_factory=dict)
    """Tags of the resources in AWS beside topicberg's own, as JSON: {"team": "data"}."""
    athena: bool = True
    """`topicberg deploy` creates a workgroup of Athena, for queries."""

    @property
    def warehouse(self) -> str:
        return f"s3://{self.bucket}/"

    @property
    def derived_warehouse(self) -> str:
        return f"s3://{self.derived_bucket}/"


class EmrSettings(Group):
    """An EMR Serverless application that computes the derived tables."""

    application_id: str = Field(pattern=r"^[0-9a-z]{1,64}$")
    execution_role_arn: str = Field(pattern=r"^arn:aws[a-zA-Z0-9-]*:iam::\d{12}:role/[!-~]+$")
    """What the job may do."""
    entry_point: str = Field(pattern=r"^(s3://[^/\s]+|local://)?/\S+\.py$")
    """job.py that `topicberg deploy emr-image` writes, in the image or in S3."""
    log_uri: str = Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/\S*)?$")
    """Where in S3 the logs of job runs go, and what they report to Dagster."""
    spark_submit_parameters: str = ""
    """Are added after those that topicberg generates, and override them."""


class NewEmrSettings(Group):
    """The EMR Serverless application that ``topicberg deploy`` creates."""

    release: str = Field(
        default="emr-spark-8.1.0", pattern=r"^emr-(spark-)?\d+\.\d+\.\d+(-\d{8})?$"
    )
    """It needs Spark 4.1."""
    image: str | None = Field(
        default=None,
        pattern=r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.[a-z0-9.-]+/[^\s:@]+(:[\w.-]+|@sha256:[0-9a-f]{64})$",
    )
    """Built from what `topicberg deploy emr-image` writes; without it, the code is uploaded."""
    max_vcpu: int = Field(default=16, ge=4, le=4000)
    """What all of its job runs may use together."""
    subnet_ids: str = Field(
        default="", pattern=r"^(subnet-[0-9a-f]{8,24}(,subnet-[0-9a-f]{8,24}){0,15})?$"
    )
    """Subnets (separated by commas, at most 16) in which its job runs have network interfaces, for
    what they reach in a VPC; without them they reach AWS only."""
    security_group_ids: str = Field(
        default="", pattern=r"^(sg-[0-9a-f]{8,24}(,sg-[0-9a-f]{8,24}){0,4})?$"
    )
    """Security groups of these network interfaces (separated by commas, at most 5)."""


class ComputeSettings(DeploymentSettings):
    """Spark Connect, or an EMR Serverless application."""

    concern = Concern.COMPUTE

    compute: Literal["emr", "none"] | None = None
    """`emr`: `topicberg deploy` creates an EMR Serverless application, which computes the derived
    tables; none: it creates none; by default it creates one unless TOPICBERG_SPARK_REMOTE is
    set."""
    spark_remote: SecretStr | None = Field(default=None, exclude=True)
    """The Spark Connect endpoint of a cloud deployment."""
    emr: Annotated[NewEmrSettings, *FromJson] = NewEmrSettings()
    """The EMR Serverless application that `topicberg deploy` creates: release, image, max_vcpu,
    subnet_ids, security_group_ids."""
    emr_jobs: Annotated[EmrSettings | None, *FromJson] = Field(
        default=None, exclude=True, repr=False
    )
    """Another EMR Serverless application that computes the derived tables: application_id,
    execution_role_arn, entry_point, log_uri, spark_submit_parameters."""

    @property
    def on_emr(self) -> bool:
        """Whether the deployment has an EMR Serverless application of its own."""
        return self.compute == "emr" or (self.compute is None and self.spark_remote is None)

    @property
    def has_spark(self) -> bool:
        """Whether there is a Spark Connect endpoint; EMR Serverless computes only tables."""
        return self.deployment == "local" or self.spark_remote is not None


_BYTE = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}(/(3[0-2]|[12]?\d))?"


class SnowflakeSettings(ConfluentSettings):
    """How Snowflake finds and reads the tables, and who owns what is in it."""

    concern = Concern.SNOWFLAKE

    snowflake_catalog: Literal["glue", "glue_rest", "open_catalog", "iceberg_rest"] = "glue"
    """The catalog in which Snowflake finds the topics' tables: Glue, Glue's Iceberg REST API,
    Snowflake Open Catalog, or another Iceberg REST catalog."""
    snowflake_refresh_seconds: int = Field(
        default_factory=lambda fields: 300 if fields["deployment"] == "cloud" else 30,
        ge=30,
        le=86400,
    )
    """How often Snowflake asks the catalog for new tables and snapshots; it takes no shorter
    interval than 30, and charges for each; Confluent's Tableflow publishes about every five
    minutes."""
    snowflake_owner_role: str | None = Field(default=None, pattern=r"^[A-Z_][A-Z0-9_$]*$")
    """The role of Snowflake that creates and owns everything, in place of ACCOUNTADMIN,
    SECURITYADMIN and SYSADMIN."""
    snowflake_tags: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^\w+\.\w+\.\w+$")],
            Annotated[str, Field(min_length=1, max_length=256)],
        ],
        *FromJson,
    ] = Field(default_factory=dict)
    """Tags of Snowflake, which exist, and their values on what `topicberg deploy` creates there, as
    JSON: {"GOVERNANCE.TAGS.COST_CENTER": "data"}."""
    snowflake_allowed_ips: str = Field(default="", pattern=rf"^({IPV4}(,{IPV4})*)?$")
    """Addresses and networks (IPv4, separated by commas) from which the service user may log in;
    `topicberg deploy` creates a network policy for it."""
    snowflake_linked_database: bool = Field(
        default_factory=lambda fields: fields["deployment"] == "cloud"
    )
    """Snowflake finds the topics' tables by itself, in a catalog-linked database; without it,
    `topicberg deploy` and the assets create each of them; a cloud deployment that was created
    without it stays without it by default."""
    snowflake_privatelink: bool = False
    """Snowflake reaches S3 and the catalog by AWS PrivateLink, over endpoints that its account has
    already; needs another TOPICBERG_SNOWFLAKE_CATALOG than glue."""
    snowflake_vended_credentials: bool = Field(
        default_factory=lambda fields: (
            fields["snowflake_catalog"] in ("open_catalog", "iceberg_rest")
        )
    )
    """The linked database reads S3 with credentials of the catalog, not by an external volume; Glue
    vends those of AWS Lake Formation only."""

    @property
    def snowflake_namespace(self) -> str:
        """The same in the catalog in which Snowflake finds the tables: of catalogs that Tableflow
        does not publish to, its own one, which only has the cluster's id."""
        own = self.snowflake_catalog == "iceberg_rest" and not self.own_engine
        return self.cluster_id if own else self.topics_namespace

    @property
    def topics_in_glue(self) -> bool:
        """Whether Snowflake finds the topics' tables in Glue, not in another REST catalog."""
        return self.snowflake_catalog in ("glue", "glue_rest")

    @property
    def has_topics_catalog(self) -> bool:
        """Whether the topics' tables are in another catalog than AWS Glue: Tableflow publishes the
        tables of a cluster to one catalog."""
        return self.snowflake_catalog == "open_catalog" and not self.own_engine

    def snowflake_name(self, kind: str) -> str:
        """Return the name of a Snowflake object, e.g. ``snowflake_name("volume")``."""
        return f"{self.prefix}_{kind}".upper()


class DagsterSettings(EnvironmentSettings):
    """Dagster's UI, its checks, and how long it keeps runs."""

    concern = Concern.DAGSTER

    catalogs_patience_seconds: float = Field(default=300, ge=0)
    """How stale Glue and Snowflake may be before checks report it."""
    docs_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Address of the published site of the documentation: assets and alerts link to its pages; else
    topicberg's web server has them."""
    ui_hosts: str = Field(default="", pattern=r"^[A-Za-z0-9.,\[\]:_ -]*$")
    """Host names, with commas between them, by which browsers reach the Dagster UI beside 127.0.0.1
    and localhost; without ports."""
    keep_runs_days: float = Field(default=30, gt=0)
    """How long Dagster keeps runs and their logs."""
    keep_check_runs_days: float = Field(default=2, gt=0)
    """How long it keeps runs of checks, maintenance and sensors."""


class LocalStackSettings(EnvironmentSettings):
    """Where the services of the local stack are, and where its Spark computes."""

    concern = Concern.LOCAL

    ports: Annotated[dict[str, int], *FromJson] = Field(default_factory=dict)
    """Ports of the local services, as JSON: {"kafka": 9092}; else free ones."""
    spark_master: str = Field(
        default="local[*]", pattern=r"^(local\[(\*|\d+)\]|spark://[A-Za-z0-9.-]+:\d+)$"
    )
    """Where the local Spark computes: in its own process with n cores, local[n], or on the workers
    of a standalone cluster of this machine, spark://127.0.0.1:7077."""
