"""What became of the topics that Tableflow is enabled on: their tables, their storage, Glue."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any, Literal, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from topicberg import glue
from topicberg.errors import TopicbergError
from topicberg.local.confluent.account import CATALOG, INTEGRATION, TABLE, Account
from topicberg.local.store import Stored
from topicberg.tableflow import control
from topicberg.tableflow.status import read_status

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
Sync = Literal["PENDING", "SYNCED", "FAILED"]


class CatalogStatus(NamedTuple):
    """How a table stands in a catalog; ``snapshot_id`` is the one that it shows."""

    sync: Sync = "PENDING"
    error: str | None = None
    snapshot_id: int | None = None
    at: float | None = None


class Tables(threading.Thread):
    """Registers the tables in Glue as they grow, as Tableflow does, where there is a catalog
    integration for it.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(name="tables", daemon=True)
        self._account = account
        self._stopping = threading.Event()
        self._synced: dict[tuple[str, str], CatalogStatus] = {}
        """Catalog integration's id and topic."""

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                for catalog in self._account.store.all(CATALOG):
                    if catalog.properties["config"]["kind"] == "AwsGlue":
                        self._sync_all(catalog)
            except Exception:
                logger.exception("catalog integrations")

    def location(self, table: Stored) -> str | None:
        """Where the table is; None: the engine has not made it yet."""
        from pyiceberg.exceptions import NoSuchTableError

        name = (self._account.config.cluster_id, table.name[1])
        try:
            return str(self._account.catalog().load_table(name).location())
        except NoSuchTableError:
            return None

    def status(self, catalog: Stored, topic: str) -> CatalogStatus:
        return self._synced.get((catalog.name[0], topic), CatalogStatus())

    def forget(self, catalog: Stored) -> None:
        """Sync all of its tables anew."""
        for key in [key for key in list(self._synced) if key[0] == catalog.name[0]]:
            del self._synced[key]

    def _sync_all(self, catalog: Stored) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        for table in self._account.store.all(TABLE):
            topic = table.name[1]
            before = self.status(catalog, topic)
            now = read_status(self._account.config, topic)
            if now.phase != "RUNNING":
                continue
            if before.sync == "SYNCED" and before.snapshot_id == now.snapshot_id:
                continue
            try:
                self._register(catalog, topic)
            except NoSuchTableError:  # dropped by hand; the engine makes it anew
                status = CatalogStatus()
            except (TopicbergError, ClientError, BotoCoreError, OSError) as error:
                status = CatalogStatus("FAILED", str(error).splitlines()[0])
            else:
                status = CatalogStatus("SYNCED", None, now.snapshot_id, time.time())
            self._synced[catalog.name[0], topic] = status

    def _register(self, catalog: Stored, topic: str) -> None:
        """:raises TopicbergError: the role cannot be used, or Glue has another table there"""
        account = self._account
        if problem := trust_problem(account, catalog.properties["integration"]):
            raise TopicbergError(problem)
        spec = control.find_topic(account.config, topic)
        table = account.catalog().load_table(spec.table_identifier(account.config))
        database = catalog.properties["config"].get("custom_database") or account.config.cluster_id
        glue.register(account.aws("glue"), table, database, spec.glue_name)


def trust_problem(account: Account, integration: str) -> str | None:
    """Why the customer's role cannot be taken on through an integration; None: it can."""
    stored = account.store.get(INTEGRATION, (integration,))
    if stored is None:
        return f"the provider integration {integration} is gone"
    config = stored.properties["config"]
    arn: str = config["customer_iam_role_arn"]
    try:
        client = account.aws("iam")
        role = client.get_role(RoleName=arn.rpartition("/")[2])["Role"]
    except ClientError:
        return f"the role {arn} does not exist"
    except BotoCoreError as error:
        return f"IAM does not answer: {error}"
    document = role["AssumeRolePolicyDocument"]
    policy = json.loads(document) if isinstance(document, str) else document
    if role["Arn"] != arn or not any(
        _trusts(statement, config) for statement in _many(policy.get("Statement"))
    ):
        return (
            f"the role {arn} does not let {config['iam_role_arn']} take it on with the external"
            f" id {config['external_id']}"
        )
    return None


def _trusts(statement: dict[str, Any], config: dict[str, str]) -> bool:
    principals = statement.get("Principal", {})
    trusted = _many(principals.get("AWS") if isinstance(principals, dict) else principals)
    condition = statement.get("Condition", {}).get("StringEquals", {})
    return (
        statement.get("Effect") == "Allow"
        and bool({"sts:AssumeRole", "sts:*", "*"} & set(_many(statement.get("Action"))))
        and bool({config["iam_role_arn"], "*"} & set(trusted))
        and config["external_id"] in _many(condition.get("sts:ExternalId"))
    )


def _many(value: Any) -> list[Any]:
    """In policies, one may stand for a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
