"""What became of the topics that Tableflow is enabled on: their tables, their storage, Glue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from topicberg.catalogs import glue
from topicberg.errors import TopicbergError, first_line
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import read_status
from topicberg_local.emulators import iam
from topicberg_local.emulators.confluent.account import CATALOG, INTEGRATION, TABLE, Account
from topicberg_local.emulators.process import Worker
from topicberg_local.emulators.store import Stored

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient

Sync = Literal["PENDING", "SYNCED", "FAILED"]


class CatalogStatus(NamedTuple):
    """How a table stands in a catalog; ``snapshot_id`` is the one that it shows."""

    sync: Sync = "PENDING"
    error: str | None = None
    snapshot_id: int | None = None
    at: float | None = None


class Tables(Worker):
    """Registers the tables in Glue as they grow, where there is a catalog integration for it."""

    def __init__(self, account: Account) -> None:
        super().__init__("catalog integrations")
        self._account = account
        self._synced: dict[tuple[str, str], CatalogStatus] = {}
        """Catalog integration's id and topic."""

    def look(self) -> None:
        for catalog in self._account.store.all(CATALOG):
            if catalog.properties["config"]["kind"] == "AwsGlue":
                self._sync_all(catalog)

    def location(self, table: Stored) -> str | None:
        """Where the table is; None: the engine has not made it yet."""
        from pyiceberg.exceptions import NoSuchTableError

        name = (self._account.config.topics_namespace, table.name[1])
        try:
            return str(self._account.catalog().load_table(name).location())
        except NoSuchTableError:
            return None

    def status(self, catalog: Stored, topic: str) -> CatalogStatus:
        return self._synced.get((catalog.name[0], topic), CatalogStatus())

    def forget(self, catalog: Stored) -> None:
        """Sync all of its tables again."""
        for key in list(self._synced):
            if key[0] == catalog.name[0]:
                del self._synced[key]

    def _sync_all(self, catalog: Stored) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        for table in self._account.store.all(TABLE, lambda table: takes(catalog, table)):
            topic = table.name[1]
            before, now = self.status(catalog, topic), read_status(self._account.config, topic)
            if now.phase != "RUNNING" or now.snapshot_id is None:  # no table without a record
                continue
            if before.sync == "SYNCED" and before.snapshot_id == now.snapshot_id:
                continue
            try:
                self._register(catalog, topic)
            except NoSuchTableError:  # dropped manually; the engine creates it again
                status = CatalogStatus()
            except (TopicbergError, ClientError, BotoCoreError, OSError) as error:
                status = CatalogStatus("FAILED", first_line(error))
            else:
                status = CatalogStatus("SYNCED", None, now.snapshot_id, time.time())
            self._synced[catalog.name[0], topic] = status

    def _register(self, catalog: Stored, topic: str) -> None:
        """:raises TopicbergError: the role cannot be used, or Glue has another table there"""
        account = self._account
        database = database_of(account, catalog)
        if problem := trust_problem(account, catalog.properties["integration"], database=database):
            raise TopicbergError(problem)
        spec = control.find_topic(account.config, topic)
        table = account.catalog().load_table(spec.table_identifier(account.config))
        if glue.register(account.aws("glue"), table, database, spec.glue_name):
            point_to_metadata(account.aws("glue"), database, spec.glue_name)


def takes(catalog: Stored, table: Stored) -> bool:
    """Return whether a catalog has tables of one of the table's formats.

    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/overview.html
    """
    is_unity = catalog.properties["config"]["kind"] == "Unity"
    return ("DELTA" if is_unity else "ICEBERG") in table.properties["spec"]["table_formats"]


def point_to_metadata(client: GlueClient, database: str, name: str) -> None:
    """Let a table's location in Glue be its metadata file, as Confluent's Tableflow does."""
    table: Any = client.get_table(DatabaseName=database, Name=name)["Table"]
    fields = ("Name", "TableType", "Parameters", "StorageDescriptor")
    body: Any = {field: table[field] for field in fields}
    body["StorageDescriptor"]["Location"] = glue.metadata_location(table)
    version: dict[str, Any] = {"VersionId": table["VersionId"]} if "VersionId" in table else {}
    client.update_table(DatabaseName=database, TableInput=body, SkipArchive=True, **version)


def database_of(account: Account, catalog: Stored) -> str:
    """The Glue database of a catalog integration."""
    custom: str = catalog.properties["config"].get("custom_database", "")
    return custom or account.config.cluster_id


def trust_problem(
    account: Account, integration: str, *, bucket: str = "", database: str = ""
) -> str | None:
    """Why the customer's role cannot be used through an integration; None: it can.

    :param bucket: to which Tableflow writes with it; empty: to none
    :param database: of Glue, in which it registers tables; empty: in none
    """
    stored = account.store.get(INTEGRATION, (integration,))
    if stored is None:
        return f"the provider integration {integration} is gone"
    config = stored.properties["config"]
    arn: str = config["customer_iam_role_arn"]
    needs: list[tuple[str, str]] = []
    if bucket:
        here = f"arn:aws:s3:::{bucket}"
        needs += [(f"s3:{action}", here) for action in ("GetBucketLocation", "ListBucket")]
        objects = ("GetObject", "PutObject", "DeleteObject")
        needs += [(f"s3:{action}", f"{here}/*") for action in objects]
    if database:
        here = f"arn:aws:glue:{account.config.aws_region}:{arn.split(':')[4]}"
        of_database = (f"{here}:catalog", f"{here}:database/{database}")
        for action in ("GetDatabases", "GetDatabase", "CreateDatabase"):
            needs += [(f"glue:{action}", resource) for resource in of_database]
        changes = ("GetTable", "CreateTable", "UpdateTable", "DeleteTable")
        needs += [(f"glue:{action}", f"{here}:table/{database}/*") for action in changes]
    principal, external_id = config["iam_role_arn"], config["external_id"]
    iam_client, s3 = account.aws("iam"), account.aws("s3")
    return iam.problem(iam_client, arn, principal, external_id, *needs, s3=s3)
