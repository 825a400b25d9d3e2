"""The deployment and the names of its resources: one model, read from the environment.

Every field can be set as ``TOPICBERG_<FIELD>``, or in a ``.env`` file in the project's root
(``TOPICBERG_ENV_FILE`` names another one).
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from topicberg.errors import TopicbergError
from topicberg.project import PREFIX, Project, env_file, project_root, read_project


def derived_from(bucket: str) -> str:
    """Return the default name of the derived bucket; S3's names have at most 63 characters."""
    return f"{bucket[:55]}-derived"


_BYTE = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
_KMS_KEY = r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+$"
IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}(/(3[0-2]|[12]?\d))?"
ROLE_ARN = r"^arn:aws[a-z-]*:iam::\d{12}:role/\S+$"
TAG = r"^[\w .:/=+@-]{1,128}$"


def _from_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"Input should be a JSON object: {error}") from None


FromJson = (NoDecode, BeforeValidator(_from_json))
"""Annotations of a setting that is JSON. Decoded by pydantic-settings, a malformed one is an error
without the name of its variable."""


def problems(
    model: type[BaseSettings], error: ValidationError, show_values: bool = False
) -> list[str]:
    """Return one line for each invalid or missing setting: its variable and what it should be.

    :param show_values: with the value that was found, except for secrets
    """
    found = []
    for each in error.errors(include_url=False):
        if each["type"] == "default_factory_not_called":  # follows from another error
            continue
        if not each["loc"]:  # of a validator, which names the variables
            found.append(each["msg"].removeprefix("Value error, "))
            continue
        name = str(each["loc"][0])
        field = model.model_fields.get(name)
        if name.isupper():  # the alias of a field is the variable itself
            variable = name
        else:
            variable = f"{model.model_config.get('env_prefix', '')}{name.upper()}"
        if each["type"] == "missing":
            found.append(f"{variable}: missing")
            continue
        is_shown = show_values and field and "SecretStr" not in str(field.annotation)
        value = f" (found {each['input']!r})" if is_shown else ""
        about = f"; {field.description}" if field and field.description else ""
        found.append(f"{variable}: {each['msg'].removeprefix('Value error, ')}{value}{about}")
    return found


def invalid(what: str, lines: list[str], hint: str) -> TopicbergError:
    """Return the error of invalid settings: one line if one of them is invalid."""
    text = lines[0] if len(lines) == 1 else "\n  ".join(["", *lines])
    return TopicbergError(f"{what}: {text}" if len(lines) == 1 else f"{what}:{text}", hint=hint)


class EnvironmentSettings(BaseSettings):
    """Settings of the environment and of the file of settings, which is looked up each time."""

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True)

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"_env_file": env_file(), **given})


def see_whether_it_runs(what: str, *, starts: bool = False) -> str:
    """Return the hint about a service that does not answer.

    Only the local stack knows its services: `topicberg status` says nothing of another deployment.

    :param starts: also say how to start it
    """
    if settings().deployment == "local":
        start = ", `topicberg up` to start it" if starts else ""
        return f"run `topicberg status` to see whether {what} runs{start}"
    return f"check that {what} runs, and that this machine reaches it: network, DNS and firewall"


def as_environment(chosen: BaseSettings) -> dict[str, str]:
    """Return the settings that are set as variables, secrets included."""
    prefix = chosen.model_config.get("env_prefix") or ""
    return {
        f"{prefix}{name.upper()}": _as_text(value)
        for name in chosen.model_fields_set
        if (value := getattr(chosen, name)) is not None
    }


def _as_text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if not isinstance(value, dict):
        return str(value)
    models = {
        key: {name: _as_text(one) for name, one in model if one is not None}
        for key, model in value.items()
    }
    return json.dumps(models)


class Settings(EnvironmentSettings):
    """The deployment and the names in it.

    :raises TopicbergError: names the variable of each invalid setting
    """

    model_config = SettingsConfigDict(env_prefix="TOPICBERG_")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            lines = problems(Settings, error, show_values=True)
        else:
            return
        raise invalid(
            "invalid setting" if len(lines) == 1 else "invalid settings",
            lines,
            f"correct it, or remove it to use the default, in the environment or in {env_file()}",
        )

    deployment: Literal["local", "cloud"] = "local"
    """The local stack, or the cloud accounts."""
    tableflow: Literal["confluent", "topicberg"] = Field(
        default="confluent",
        description="whose Tableflow writes the tables in the cloud deployment; the local stack "
        "always uses topicberg's engine",
    )
    project_root: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default_factory=project_root, description="the folder of the project"
    )
    state_dir: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default_factory=lambda given: given["project_root"] / ".topicberg",
        description="state of the local stack and of Dagster",
    )
    prefix: str = Field(
        default_factory=lambda given: (
            read_project(given["project_root"]).prefix or "tableflow_kickstarter"
        ),
        pattern=PREFIX,
        description="starts the name of every resource that topicberg creates; the longest of them "
        "is a service account's, for which Confluent allows 64 characters; by default the prefix "
        "or the name of the project",
    )
    cluster_id: str = Field(
        default="lkc-local",
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="id of the Kafka cluster: namespace of its tables and name of its Glue "
        "database, unless they have a name of their own",
    )
    tableflow_namespace: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9_-]{0,254}$",
        description="namespace and Glue database of the topics' tables, in the place of the "
        "cluster's id; choose it before the first table exists",
    )
    cluster_type: Literal["Basic", "Standard"] | None = Field(
        default=None,
        description="of the Kafka cluster that `topicberg deploy` creates: Basic by default; a "
        "cluster that exists keeps its type, and a Basic one can become a Standard one",
    )
    existing_environment: str | None = Field(
        default=None,
        pattern=r"^env-[a-z0-9]+$",
        description="id of an environment of Confluent Cloud that exists: `topicberg deploy` "
        "neither changes nor deletes it",
    )
    existing_cluster: str | None = Field(
        default=None,
        pattern=r"^lkc-[a-z0-9]+$",
        description="id of a Kafka cluster in that environment, of any type: `topicberg deploy` "
        "neither changes nor deletes it",
    )
    auto_offset_reset: Literal["earliest", "latest"] = Field(
        default="latest",
        description="where consumers begin that read their settings from Parameter Store",
    )
    ports: Annotated[dict[str, int], *FromJson] = Field(
        default_factory=dict,
        description='ports of the local services, as JSON: {"kafka": 9092}; else free ones',
    )
    spark_master: str = Field(
        default="local[*]",
        pattern=r"^(local\[(\*|\d+)\]|spark://[A-Za-z0-9.-]+:\d+)$",
        description="where the local Spark computes: in its own process with n cores, local[n], or "
        "on the workers of a standalone cluster of this machine, spark://127.0.0.1:7077",
    )
    engine_workers: int = Field(
        default=8,
        ge=1,
        le=256,
        description="batches that the Tableflow engine commits at once, each in a Spark session; "
        "all topics share them",
    )
    engine_processes: int = Field(
        default=2,
        ge=1,
        le=64,
        description="processes of the Tableflow engine that read and decode small batches",
    )
    engine_process_memory_mb: int = Field(
        default=2048,
        ge=512,
        description="memory that a batch may take in a process of the engine, and a part of one in "
        "a task of Spark; a record that takes more is malformed",
    )
    engine_group: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="engines with the same name here share the topics; all of them need the same "
        "specs; by default these are the engines of one cluster and bucket",
    )
    aws_region: str = "us-east-1"
    """Of all resources in AWS."""
    aws_account_id: str = Field(default="000000000000", pattern=r"^\d{12}$")
    """The number of the account; in the cloud, `topicberg deploy` finds it."""
    bucket: str = Field(
        default_factory=lambda fields: str(fields["prefix"]).replace("_", "-"),
        pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
        description="holds the topics' tables; S3 takes no underscore, Snowflake no dot",
    )
    derived_bucket: str = Field(
        default_factory=lambda fields: (
            fields["bucket"]
            if (fields["deployment"], fields["tableflow"]) == ("cloud", "topicberg")
            else derived_from(fields["bucket"])
        ),
        pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
        validate_default=True,
        description="holds the tables computed from them: Tableflow needs a bucket of its own",
    )

    snowflake_catalog: Literal["glue", "glue_rest", "open_catalog", "iceberg_rest"] = Field(
        default="glue",
        description="the catalog in which Snowflake finds the topics' tables: Glue, Glue's Iceberg "
        "REST API, Snowflake Open Catalog, or another Iceberg REST catalog",
    )
    snowflake_refresh_seconds: int = Field(
        default_factory=lambda fields: 300 if fields["deployment"] == "cloud" else 30,
        ge=30,
        le=86400,
        description="how often Snowflake asks the catalog for new tables and snapshots; it takes "
        "no shorter interval than 30, and charges for each; Confluent's Tableflow publishes about "
        "every five minutes",
    )
    snowflake_owner_role: str | None = Field(
        default=None,
        pattern=r"^[A-Z_][A-Z0-9_$]*$",
        description="the role of Snowflake that creates and owns everything, in place of "
        "ACCOUNTADMIN, SECURITYADMIN and SYSADMIN",
    )
    snowflake_allowed_ips: str = Field(
        default="",
        pattern=rf"^({IPV4}(,{IPV4})*)?$",
        description="addresses and networks (IPv4, separated by commas) from which the service "
        "user may log in; `topicberg deploy` creates a network policy for it",
    )
    snowflake_linked_database: bool = Field(
        default_factory=lambda fields: fields["deployment"] == "cloud",
        description="Snowflake finds the topics' tables by itself, in a catalog-linked database; "
        "without it, `topicberg deploy` and the assets create each of them; a cloud deployment "
        "that was created without it stays without it by default",
    )
    snowflake_vended_credentials: bool = Field(
        default_factory=lambda fields: (
            fields["snowflake_catalog"] in ("open_catalog", "iceberg_rest")
        ),
        description="that database reads S3 with credentials that the catalog vends, not by an "
        "external volume; Glue vends those of AWS Lake Formation only",
    )
    generators: bool = Field(
        default=True,
        description="`topicberg deploy` creates the Datagen connectors of topics with a generator",
    )
    compute: Literal["emr", "none"] | None = Field(
        default=None,
        description="emr: `topicberg deploy` creates an EMR Serverless application, which computes "
        "the derived tables; none: it creates none; by default it creates one unless "
        "TOPICBERG_SPARK_REMOTE is set",
    )
    spark_remote: SecretStr | None = Field(
        default=None, exclude=True, description="the Spark Connect endpoint of a cloud deployment"
    )
    emr_release: str = Field(
        default="emr-spark-8.1.0",
        pattern=r"^emr-(spark-)?\d+\.\d+\.\d+(-\d{8})?$",
        description="release of that application; it needs Spark 4.1",
    )
    emr_image: str | None = Field(
        default=None,
        pattern=r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.[a-z0-9.-]+/[^\s:@]+(:[\w.-]+|@sha256:[0-9a-f]{64})$",
        description="image of that application, built from what `topicberg deploy emr-image` "
        "writes; without it `topicberg deploy` uploads the code",
    )
    athena: bool = Field(
        default=True, description="`topicberg deploy` creates a workgroup of Athena, for queries"
    )
    tableflow_role_arn: str | None = Field(
        default=None,
        pattern=ROLE_ARN,
        description="an existing IAM role for Tableflow, which `topicberg deploy` only checks",
    )
    snowflake_role_arn: str | None = Field(
        default=None, pattern=ROLE_ARN, description="the same for Snowflake"
    )
    emr_role_arn: str | None = Field(
        default=None, pattern=ROLE_ARN, description="the same for the job runs of EMR Serverless"
    )
    iam_path: str = Field(
        default="/",
        pattern=r"^/([A-Za-z0-9._+=,@-]+/)*$",
        description="path of the IAM roles and policies that `topicberg deploy` creates; choose it "
        "before the first `create`",
    )
    iam_permissions_boundary_arn: str | None = Field(
        default=None,
        pattern=r"^arn:aws[a-z-]*:iam::(\d{12}|aws):policy/\S+$",
        description="the permissions boundary of these roles",
    )
    tags: Annotated[
        dict[Annotated[str, Field(pattern=TAG)], Annotated[str, Field(max_length=256)]], *FromJson
    ] = Field(
        default_factory=dict,
        description="tags of the resources in AWS beside topicberg's own, as JSON: "
        '{"team": "data"}',
    )
    snowflake_tags: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^\w+\.\w+\.\w+$")],
            Annotated[str, Field(min_length=1, max_length=256)],
        ],
        *FromJson,
    ] = Field(
        default_factory=dict,
        description="tags of Snowflake, which exist, and their values on what `topicberg deploy` "
        'creates there, as JSON: {"GOVERNANCE.TAGS.COST_CENTER": "data"}',
    )
    existing_buckets: bool = Field(
        default=False,
        description="the buckets of the tables exist: `topicberg deploy` creates, changes, empties "
        "and deletes none of them",
    )
    bucket_kms_key_arn: str | None = Field(
        default=None,
        pattern=_KMS_KEY,
        description="a key of AWS KMS: `topicberg deploy` encrypts the buckets with it, and "
        "permits its use to the roles that it creates",
    )
    glue_kms_key_arn: str | None = Field(
        default=None,
        pattern=_KMS_KEY,
        description="the key of AWS KMS with which the account encrypts Glue's catalog: `topicberg "
        "deploy` permits its use to the roles that it creates",
    )
    secrets_kms_key_arn: str | None = Field(
        default=None,
        pattern=_KMS_KEY,
        description="a key of AWS KMS: `topicberg deploy` encrypts the secrets that it creates "
        "with it",
    )
    bucket_versioning: bool = Field(
        default=False,
        description="`topicberg deploy` keeps the versions of deleted and overwritten objects for "
        "30 days",
    )
    emr_max_vcpu: int = Field(
        default=16, ge=4, le=4000, description="what all of its job runs may use together"
    )

    catalogs_patience_seconds: float = Field(
        default=300, ge=0, description="how stale Glue and Snowflake may be before checks report it"
    )

    docs_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s]+$",
        description="address of the published folder docs/: assets and alerts link to its pages; "
        "else topicberg's web server has them",
    )
    ui_hosts: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9.,\[\]:_ -]*$",
        description="host names, with commas between them, by which browsers reach the Dagster UI "
        "beside 127.0.0.1 and localhost; without ports",
    )

    keep_runs_days: float = Field(
        default=30, gt=0, description="how long Dagster keeps runs and their logs"
    )
    keep_check_runs_days: float = Field(
        default=2,
        gt=0,
        description="the same for runs of checks, maintenance and sensors, which are many",
    )

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
    def warehouse(self) -> str:
        return f"s3://{self.bucket}/"

    @property
    def derived_warehouse(self) -> str:
        return f"s3://{self.derived_bucket}/"

    @property
    def is_deployed(self) -> bool:
        """Whether the Kafka cluster is known: the default id is not one of a cloud deployment."""
        return self.deployment == "local" or "cluster_id" in self.model_fields_set

    @property
    def on_emr(self) -> bool:
        """Whether the deployment has an EMR Serverless application of its own."""
        return self.compute == "emr" or (self.compute is None and self.spark_remote is None)

    @property
    def has_spark(self) -> bool:
        """Whether there is a Spark Connect endpoint; EMR Serverless computes only tables."""
        return self.deployment == "local" or self.spark_remote is not None

    @property
    def topics_namespace(self) -> str:
        """Namespace and Glue database of the topics' tables.

        https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/user-defined-namespaces.html
        """
        return self.tableflow_namespace or self.cluster_id

    @property
    def snowflake_namespace(self) -> str:
        """The same in the catalog in which Snowflake finds the tables: of catalogs that Tableflow
        does not publish to, its own one, which only has the cluster's id.
        """
        own = self.snowflake_catalog == "iceberg_rest" and not self.own_engine
        return self.cluster_id if own else self.topics_namespace

    @property
    def topics_in_glue(self) -> bool:
        """Whether Snowflake finds the topics' tables in Glue, not in another REST catalog."""
        return self.snowflake_catalog in ("glue", "glue_rest")

    @property
    def has_topics_catalog(self) -> bool:
        """Whether the topics' tables are in another catalog than AWS Glue: Tableflow publishes the
        tables of a cluster to one catalog.
        """
        return self.snowflake_catalog == "open_catalog" and not self.own_engine

    @property
    def own_engine(self) -> bool:
        """Whether topicberg's engine writes the tables."""
        return self.deployment == "local" or self.tableflow == "topicberg"

    def snowflake_name(self, kind: str) -> str:
        """Return the name of a Snowflake object, e.g. ``snowflake_name("volume")``."""
        return f"{self.prefix}_{kind}".upper()


class EmrSettings(EnvironmentSettings):
    """An EMR Serverless application that computes the derived tables: ``TOPICBERG_EMR_<FIELD>``."""

    model_config = SettingsConfigDict(env_prefix="TOPICBERG_EMR_")

    application_id: str = Field(pattern=r"^[0-9a-z]{1,64}$")
    """Of the EMR Serverless application."""
    execution_role_arn: str = Field(
        pattern=r"^arn:aws[a-zA-Z0-9-]*:iam::\d{12}:role/[!-~]+$", description="what the job may do"
    )
    entry_point: str = Field(
        pattern=r"^(s3://[^/\s]+|local://)?/\S+\.py$",
        description="job.py that `topicberg deploy emr-image` writes, in the image or in S3",
    )
    log_uri: str = Field(
        pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/\S*)?$",
        description="where in S3 the logs of job runs go, and what they report to Dagster",
    )
    spark_submit_parameters: str = Field(
        default="", description="are added after those that topicberg generates, and override them"
    )


def emr_settings() -> EmrSettings | None:
    """Return the application that computes the derived tables: that of the environment, else the
    one that ``topicberg deploy`` created. None: compute where ``TOPICBERG_SPARK_REMOTE`` is.

    :raises TopicbergError: names every setting that is missing or invalid, if any is set
    """
    try:
        return EmrSettings()
    except ValidationError as error:
        errors, wrong = error.errors(), problems(EmrSettings, error)
    # pydantic's input for a missing field is all that was given; a .env file may have more.
    if all(
        each["type"] == "missing" and not EmrSettings.model_fields.keys() & each["input"].keys()
        for each in errors
    ):
        return _deployed_emr(settings())
    raise invalid(
        "the settings of EMR Serverless are incomplete or invalid",
        wrong,
        "set all of them or none, in the environment or in .env; see docs/production.md",
    )


def _deployed_emr(config: Settings) -> EmrSettings | None:
    """Return the application of the deployment, if its derived tables are computed there."""
    if config.deployment == "local" or not config.on_emr:
        return None
    found = noted(config)[0].get(DEPLOYED_EMR)
    return EmrSettings.model_validate(found) if found else None


DEPLOYED_FILE = "deployment.json"
"""In the state directory: names that only a deployment's accounts know. None is secret."""
DEPLOYED_EMR = "emr"
"""In that file: the settings of the EMR Serverless application that ``deploy`` created."""
DEPLOYED_NAMES = ("cluster_id", "bucket", "derived_bucket", "aws_account_id")
DEPLOYED_LINK = "snowflake_linked_database"
"""In that file: the choice of the deployment, which outlasts a new default."""
DEPLOYED_NAMESPACE = "tableflow_namespace"
"""In that file: the topics' namespace, if it is not the cluster's id."""


class DeployedSettings(Settings):
    """Settings of the cloud deployment: an unknown name is an error, never a default."""

    def __getattribute__(self, name: str) -> Any:
        stated = super().__getattribute__
        from_bucket = name == "derived_bucket" and "bucket" in stated("model_fields_set")
        if name in DEPLOYED_NAMES and name not in stated("model_fields_set") and not from_bucket:
            raise TopicbergError(
                f"the cloud deployment's {name} is not known: {noted(self)[1]}",
                hint="run `topicberg deploy status` once, which writes that file, or set "
                + ", ".join(f"TOPICBERG_{each.upper()}" for each in DEPLOYED_NAMES),
            )
        return super().__getattribute__(name)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process; in the cloud, with the names that ``deploy`` found.

    The environment takes precedence.
    """
    stated = Settings()
    if stated.deployment == "local":
        return stated
    found = noted(stated)[0]
    if found:  # a file without the choice is of a deployment whose tables were created
        found.setdefault(DEPLOYED_LINK, False)
    return DeployedSettings(**{k: v for k, v in found.items() if k not in stated.model_fields_set})


def with_choices(config: Settings) -> Settings:
    """Return the settings with the choices that the deployment remembers, for ``deploy``."""
    found = {} if config.deployment == "local" else noted(config)[0]
    if not found:
        return config
    # A file without the choice is of a deployment whose tables were created.
    choices = {DEPLOYED_LINK: found.get(DEPLOYED_LINK, False)}
    if DEPLOYED_NAMESPACE in found:
        choices[DEPLOYED_NAMESPACE] = found[DEPLOYED_NAMESPACE]
    stated = config.model_fields_set
    return config.model_copy(update={k: v for k, v in choices.items() if k not in stated})


def is_deployed(config: Settings) -> bool:
    """Return whether ``topicberg deploy`` has created the platform; in the cloud it always has."""
    return config.deployment == "cloud" or (config.state_dir / DEPLOYED_FILE).exists()


def noted(config: Settings) -> tuple[dict[str, Any], str]:
    """Return the names that ``topicberg deploy`` wrote, and why one may be missing."""
    path = config.state_dir / DEPLOYED_FILE
    try:
        found = json.loads(path.read_text())
        prefix = found.pop("prefix", None)
    except FileNotFoundError:
        return {}, f"there is no {path}"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return {}, f"{path} cannot be read: {type(error).__name__}"
    if prefix != config.prefix:
        return {}, f"{path} is of prefix {prefix}, not {config.prefix}"
    return found, f"{path} lacks it"
