"""An admin user without Snowflake's system roles has what `bootstrap-snowflake --role` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from snowflake.connector.errors import ProgrammingError
from vendors import ADMIN_SECRET, in_this_process

from topicberg.clients import rsa
from topicberg.errors import TopicbergError
from topicberg_deploy.preflight import check
from topicberg_deploy.snowflake.bootstrap import Admin

OWNER = "TOPICBERG_DEPLOYER"
OWN: dict[str, Any] = {
    "snowflake_owner_role": OWNER,
    "snowflake_linked_database": True,
    "snowflake_refresh_seconds": 30,
    "snowflake_allowed_ips": "127.0.0.1",
    "compute": "none",
}


def test_role_of_its_own_creates_and_deletes_everything(tmp_path: Path) -> None:
    with in_this_process(tmp_path) as vendors:
        context, _ = vendors.open()
        public = rsa.public_key(context.secrets.read(ADMIN_SECRET) or {}, 1)
        assert public
        vendors.sql("REVOKE ROLE ACCOUNTADMIN FROM USER DEPLOYER")
        with pytest.raises(TopicbergError, match=f"role {OWNER}"):
            check(vendors.open("stock_trades", **OWN)[0])
        before = vendors.left()
        vendors.only = ("snowflake/",)
        for statement in Admin("ORG-ACCOUNT", "DEPLOYER", public, OWNER).statements():
            vendors.sql(statement)
        created = vendors.left() - before
        check(vendors.open("stock_trades", **OWN)[0])
        context = vendors.create("stock_trades", **OWN)
        assert context.waiting == {}
        assert vendors.plan("stock_trades", **OWN) == {}
        with context.snowflake.session() as session:
            session.only_role = None
            with pytest.raises(ProgrammingError):
                session.take("ACCOUNTADMIN")
        assert vendors.delete("stock_trades", **OWN) == {}
        assert vendors.left() == before | created
