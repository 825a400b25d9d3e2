"""What is sent: request bodies, IAM documents and SQL, made without a server."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from pydantic import SecretStr

from topicberg.clients.secrets import ApiKey
from topicberg.errors import TopicbergError
from topicberg.logins.catalog import RestCatalog
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.topics import TopicSpec, load_topics
from topicberg_deploy.aws import iam
from topicberg_deploy.confluent.connect import Connector
from topicberg_deploy.confluent.integrations import UNITY_INTEGRATION, unity_steps
from topicberg_deploy.confluent.keys import _open, _values
from topicberg_deploy.confluent.tableflow import config_of
from topicberg_deploy.context import DeployContext
from topicberg_deploy.draw import draw
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Live, compare
from topicberg_deploy.settings import DeploySettings

CONFIG = Settings(prefix="demo")
REPOSITORY = Path(__file__).parents[3]
(SPEC,) = [spec for spec in load_topics() if spec.name == "stock_trades"]


class Facts:
    """The part of a deploy context that documents are created from."""

    aws: ClassVar[Any] = SimpleNamespace(
        bucket="demo-bucket",
        derived_bucket="demo-bucket-derived",
        account="123456789012",
        role_arn=lambda name: f"arn:aws:iam::123456789012:role/{name}",
    )
    cluster = namespace = "lkc-1"
    config = Settings(prefix="demo", aws_region="us-east-1")
    names = Names("demo")
    specs: ClassVar[list[TopicSpec]] = [SPEC]
    live: ClassVar[dict[str, Live]] = {
        "confluent/provider_integration": Live(
            "cspi-1", {}, {"principal": "arn:aws:iam::1:role/c", "external_id": "ext-c"}
        ),
        "snowflake/volume": Live(
            "V", {}, {"principal": "arn:aws:iam::2:user/s", "external_id": "ext-v"}
        ),
        "snowflake/derived_volume": Live(
            "D", {}, {"principal": "arn:aws:iam::2:user/s", "external_id": "ext-v"}
        ),
        "snowflake/integration": Live(
            "I", {}, {"principal": "arn:aws:iam::2:user/s", "external_id": "ext-i"}
        ),
    }
    need = DeployContext.need


WORLD = cast(DeployContext, Facts())


def test_open_catalog_is_trusted_once_its_user_is_known() -> None:
    """In the role, so that no later `create` takes the statement away."""
    context = cast(Any, Facts())
    context.config = Settings(deployment="cloud", prefix="demo", snowflake_catalog="open_catalog")
    given = {"confluent_api_key": "k", "confluent_api_secret": SecretStr("s")}
    context.deploy = DeploySettings.model_validate(given)
    before = iam.snowflake_trust(context)["Statement"]
    read_only = iam.snowflake_policy(context)["Statement"]
    context.deploy = context.deploy.model_copy(
        update={"catalog": RestCatalog(derived_name="derived")}
    )
    written = [one for one in iam.snowflake_policy(context)["Statement"] if one not in read_only]
    assert [(one["Action"], one["Resource"]) for one in written] == [
        (["s3:PutObject", "s3:DeleteObject"], "arn:aws:s3:::demo-bucket-derived/*")
    ]
    user = "arn:aws:iam::333333333333:user/open"
    context.deploy = context.deploy.model_copy(
        update={"catalog": RestCatalog(iam_user_arn=user, external_id="ext-o")}
    )
    assert iam.snowflake_trust(context)["Statement"] == [*before, iam.trusted_by(user, "ext-o")]


def test_unity_steps_are_listed_until_it_is_connected() -> None:
    context = cast(Any, Facts())
    unity = {"catalog": "lake", "client_id": "principal", "client_secret": "quiet"}
    context.config = Settings.model_validate({"unity": unity})
    context.live = {}
    steps = unity_steps(context)
    assert any("s3://demo-bucket/" in step for step in steps)
    assert any("ON CATALOG `lake` TO `principal`" in step for step in steps)
    assert "quiet" not in str(steps)
    for phase in ("PENDING", "FAILED"):
        context.live = {UNITY_INTEGRATION: Live("tci-1", facts={"phase": phase})}
        assert unity_steps(context) == steps
    context.live = {UNITY_INTEGRATION: Live("tci-1", facts={"phase": "CONNECTED"})}
    assert unity_steps(context) == []


def test_confluent_is_trusted_with_its_external_id_and_may_tag() -> None:
    assume, tag = iam.confluent_trust(WORLD)["Statement"]
    assert assume["Condition"] == {"StringEquals": {"sts:ExternalId": "ext-c"}}
    assert (tag["Action"], "Condition" in tag) == ("sts:TagSession", False)


def test_snowflake_is_trusted_for_volumes_and_for_the_integration() -> None:
    assert [
        one["Condition"]["StringEquals"]["sts:ExternalId"]
        for one in iam.snowflake_trust(WORLD)["Statement"]
    ] == ["ext-v", "ext-i"]


@pytest.mark.parametrize("policy", [iam.tableflow_policy, iam.snowflake_policy])
def test_policies_name_their_resources(policy: Any) -> None:
    document = policy(WORLD)
    for statement in document["Statement"]:
        arns = statement["Resource"]
        for arn in [arns] if isinstance(arns, str) else arns:
            assert arn.startswith(
                ("arn:aws:s3:::demo-bucket", "arn:aws:glue:us-east-1:123456789012:")
            )
        assert not any(action.endswith("*") for action in statement["Action"])
    assert len(json.dumps(document)) < 6144  # AWS's limit


def test_snowflake_may_not_write() -> None:
    text = json.dumps(iam.snowflake_policy(WORLD))
    assert not any(verb in text for verb in ("Put", "Delete", "Create", "Update"))


def test_snowflake_may_read_topics_and_derived_tables() -> None:
    objects = iam.snowflake_policy(WORLD)["Statement"][1]["Resource"]
    assert set(objects) == {"arn:aws:s3:::demo-bucket/*", "arn:aws:s3:::demo-bucket-derived/*"}
    assert "derived" not in json.dumps(iam.tableflow_policy(WORLD))
    glue = iam.snowflake_policy(WORLD)["Statement"][-1]["Resource"]
    tables = {arn.rpartition("table/")[2] for arn in glue if ":table/" in arn}
    assert tables == {"lkc-1/*", "demo_stock_trades/*"}


@pytest.mark.parametrize("of", ["kafka", "schema_registry", "tableflow"])
def test_a_secret_is_read_as_it_was_written(of: Any) -> None:
    from pydantic import SecretStr

    key = ApiKey("KEY", SecretStr("a:b=c"))
    found, public = _open(of, _values(of, key, {"some.url": "http://x"}))
    assert found == key
    assert public == {"some.url": "http://x"}


def test_tableflow_is_told_of_errors_once() -> None:
    config = config_of(SPEC)
    assert config["error_handling"] == {"mode": "SUSPEND"}
    assert config["retention_ms"] == "604800000"
    assert "record_failure_strategy" not in config


def test_dead_letters_have_a_target() -> None:
    document = SPEC.model_dump(by_alias=True)
    document["tableflow"]["error_handling"] = {"mode": "LOG"}
    config = config_of(TopicSpec.model_validate(document))
    assert config["error_handling"] == {"mode": "LOG", "target": "error_log"}


def test_what_nobody_wants_is_not_compared() -> None:
    assert compare({"a": 1, "b": 2}, {"a": 1}) == {}
    assert compare({"a": 1}, {"a": 2, "c": 3}) == {"a": (1, 2), "c": (None, 3)}


def test_graph_has_every_resource_in_its_vendors_group(tmp_path: Path) -> None:
    graph = resources(CONFIG, load_topics())
    draw(graph, tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    assert text.count("subgraph ") == 3
    for resource in graph:
        assert text.count(f'\n    "{resource.key}" [label=') == 1


def test_picture_of_the_docs_has_the_graph_of_this_project() -> None:
    """To draw it again: `topicberg deploy graph -o docs/images/platform.svg` in the cloud."""
    graph = resources(Settings(deployment="cloud"), load_topics())
    picture = (REPOSITORY / "docs/images/platform.svg").read_text()
    titles = {html.unescape(title) for title in re.findall("<title>(.+)</title>", picture)}
    assert {title for title in titles if "/" in title and "->" not in title} == {
        resource.key for resource in graph if resource.wanted
    }


@pytest.mark.skipif(shutil.which("dot") is None, reason="no Graphviz")
def test_graphviz_draws_the_graph(tmp_path: Path) -> None:
    draw(resources(CONFIG, load_topics()), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


def test_picture_without_graphviz_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TopicbergError, match="needs Graphviz") as caught:
        draw([], tmp_path / "a.svg")
    assert "a.dot" in (caught.value.hint or "")
    with pytest.raises(TopicbergError, match="gif"):
        draw([], tmp_path / "a.gif")


def test_without_generators_nothing_of_a_connector_is_wanted() -> None:
    with_them = {one.key: one for one in resources(CONFIG, load_topics())}
    config = CONFIG.model_copy(update={"generators": False})
    without = {one.key: one for one in resources(config, load_topics())}
    assert with_them.keys() == without.keys()
    changed = {key for key, one in without.items() if one.wanted != with_them[key].wanted}
    connectors = {key for key, one in with_them.items() if isinstance(one, Connector)}
    assert connectors
    assert connectors <= changed
    assert all("connector" in key for key in changed)
    assert not {need for one in without.values() if one.wanted for need in one.needs} & changed


def test_json_beside_avro_is_a_topic_of_its_own() -> None:
    """Of one generator, as docs/pipelines.md describes it."""
    text = SPEC.model_dump(by_alias=True, exclude_unset=True)
    variant = TopicSpec.model_validate(
        {**text, "name": "stock_trades_json", "schema": {"format": "json", "file": "airline.json"}}
    )
    found = resources(CONFIG, [SPEC, variant])
    keys = [resource.key for resource in found]
    assert len(set(keys)) == len(keys)
    connectors = [one for one in found if isinstance(one, Connector)]
    assert [one.format for one in connectors] == ["avro", "json"]
    for what in ("topic", "tableflow", "connector"):
        wanted = {f"confluent/{what}/{name}" for name in ("stock_trades", "stock_trades_json")}
        assert wanted <= set(keys)
    names = [(one.kind, one.name) for one in connectors]
    assert len(set(names)) == len(names)
