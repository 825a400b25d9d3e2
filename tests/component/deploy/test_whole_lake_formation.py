"""A whole deployment in an AWS account that Lake Formation governs, with tags of Snowflake.

Created, completed, changed and deleted in the emulators of all vendors, by a role that has only the
grants that `deploy` prints.
"""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from vendors import in_this_process

from topicberg.errors import TopicbergError
from topicberg_deploy import engine
from topicberg_deploy.aws.lake_formation import LakeGrant, manual_steps
from topicberg_deploy.preflight import check
from topicberg_local.emulators.snowflake.tags import REFERENCE

TOPIC = "airline.sunset"
"""It has no connector: its first records come after the grants to Tableflow's role."""
TAG = "GOV.TAGS.COST_CENTER"
VIOLATIONS = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.NOT_IMPLEMENTED,
}
TAGGED = {*("WAREHOUSE", "DATABASE", "USER", "ROLE", "CATALOG INTEGRATION", "NETWORK POLICY")}


def test_governed_account_is_created_changed_and_deleted_with_the_printed_grants(
    tmp_path: Path,
) -> None:
    changes: dict[str, Any] = {
        "snowflake_tags": {TAG: "data"},
        "snowflake_allowed_ips": "127.0.0.1",
    }
    with in_this_process(tmp_path, governed=True) as vendors:
        account = vendors.governed
        assert account
        account.allow("deployer", {"Effect": "Allow", "Action": "*", "Resource": "*"})
        vendors.deployer = account.session("deployer")
        account.govern()
        for statement in ("DATABASE GOV", "SCHEMA GOV.TAGS", f"TAG {TAG}"):
            vendors.sql(f"CREATE {statement}")
        before = vendors.left()
        vendors.only = ("aws/", "snowflake/")

        with pytest.raises(TopicbergError, match="role/deployer may not create a data") as told:
            check(vendors.open(TOPIC, **changes)[0], "create")
        account.run(told.value.message.partition(" runs: ")[2].partition("\n")[0])
        check(vendors.open(TOPIC, **changes)[0], "create")
        unknown = {**changes, "snowflake_tags": {"GOV.TAGS.NONE": "data"}}
        context, graph = vendors.open(TOPIC, **unknown)
        (tags,) = (one for one in graph if one.key == "snowflake/tags/warehouse")
        with pytest.raises(TopicbergError, match=r"tags of Snowflake's warehouse .* not exist"):
            tags.create(context)
        context = vendors.create(TOPIC, **changes)
        assert set(context.waiting) == {
            "snowflake/table/airline_sunset",
            *(f"snowflake/grant/{role}/table/airline_sunset" for role in ("reader", "query")),
        }

        for command in manual_steps(context):
            account.run(command)
        assert manual_steps(context) == []
        # Snowflake's emulator reads Glue as the account's root.
        root = f"arn:aws:iam::{context.aws.account}:root"
        every = {"Table": {"DatabaseName": context.namespace, "TableWildcard": {}}}
        database = {"Database": {"Name": context.namespace}}
        for resource in (every, database):
            account.run(LakeGrant(root, ("DESCRIBE",), resource).command())
        vendors.confluent.written.add(TOPIC)
        vendors.create(TOPIC, **changes)
        assert {one.name[0] for one in vendors.snowflake.store.all(REFERENCE)} == TAGGED

        names = vendors.open(TOPIC, **changes)[0].config
        vendors.sql(f"ALTER WAREHOUSE \"{names.snowflake_name('warehouse')}\" SET TAG {TAG} = 'x'")
        context, graph = vendors.open(TOPIC, **changes)
        (step,) = (one for one in engine.plan(graph, context) if one.action != "keep")  # only it
        assert step.lines() == [f"{TAG}: x → data"]
        engine.converge(step.resource, context, lambda *_: None)
        assert engine.examine(step.resource, context).action == "keep"

        assert vendors.delete(TOPIC, **changes) == {}
        assert vendors.left() == before
        assert not [one for one in vendors.confluent.asked if one.status in VIOLATIONS]
