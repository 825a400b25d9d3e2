"""Settings of a deployment: all problems at once, no secret in any of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.errors import TopicbergError
from topicberg.naming import Names
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.settings import Settings
from topicberg.settings.models import UnitySettings
from topicberg.topics import TopicSpec, load_topics
from topicberg_deploy.platform import ACCOUNTS, uncomputed
from topicberg_deploy.settings import DeploySettings, check_secrets, check_specs, load

CLOUD = Settings(deployment="cloud")
RIGHT = {
    "confluent_api_key": "KEY",
    "confluent_api_secret": "very-secret",
    "admin_user_secrets_root_path": "/snowflake_admin",
}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


def test_every_problem_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)  # moto leaves keys in the environment
    flags = {"day_count": 0, "number_of_api_keys_to_retain": 1, "confluent_api_secret": "hush"}
    with pytest.raises(TopicbergError) as raised:
        load(flags, CLOUD)
    message = str(raised.value)
    for part in (
        "TOPICBERG_CONFLUENT_API_KEY (--confluent-api-key)",
        "TOPICBERG_ADMIN_USER_SECRETS_ROOT_PATH (--admin-user-secrets-root-path)",
        "TOPICBERG_DAY_COUNT (--day-count)",
        "TOPICBERG_NUMBER_OF_API_KEYS_TO_RETAIN (--number-of-api-keys-to-retain)",
        "AWS: no credentials",
    ):
        assert part in message
    assert "hush" not in message


@pytest.mark.usefixtures("aws")
def test_flags_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_DAY_COUNT", "7")
    monkeypatch.setenv("TOPICBERG_CONFLUENT_URL", "http://127.0.0.1:1")
    assert load(RIGHT, CLOUD).day_count == 7
    assert load({**RIGHT, "day_count": 9}, CLOUD).day_count == 9
    assert load(RIGHT, CLOUD).confluent_url == "http://127.0.0.1:1"


@pytest.mark.usefixtures("aws")
def test_an_unknown_profile_is_a_problem() -> None:
    with pytest.raises(TopicbergError, match="nobody"):
        load({**RIGHT, "profile": "nobody"}, CLOUD)


def test_secrets_are_not_shown() -> None:
    assert "very-secret" not in repr(DeploySettings.model_validate(RIGHT))


@pytest.mark.parametrize(
    "arguments",
    [
        ["deploy", "create", "--day-counts", "3"],
        ["deploy", "delete", "--no-such-flag"],
        ["deploy", "destroy"],
        ["deploy", "create", "--day-count="],
    ],
)
def test_an_unknown_flag_or_command_is_an_error(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_the_source_s_flags_are_known() -> None:
    for command in ("create", "delete", "plan"):
        text = CliRunner().invoke(app, ["deploy", command, "--help"], terminal_width=200).output
        for flag in (
            "--profile",
            "--confluent-api-key",
            "--confluent-api-secret",
            "--snowflake-warehouse",
            "--admin-user-secrets-root",
            "--day-count",
        ):
            assert flag in text


UUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


@pytest.mark.parametrize(
    ("stated", "derived"),
    [
        ({"bucket": "lake"}, "lake-derived"),
        ({"bucket": "lake", "derived_bucket": "lab"}, "lab"),
        # As the kickstarter called it; a bucket's name has 63 characters.
        (
            {"deployment": "cloud", "bucket": f"tableflow-kickstarter-{UUID}"},
            f"tableflow-kickstarter-{UUID[:33]}-derived",
        ),
        # Without Confluent's Tableflow one bucket is enough, and there is no other.
        ({"deployment": "cloud", "tableflow": "topicberg", "bucket": "lake"}, "lake"),
    ],
)
def test_derived_tables_have_a_bucket(stated: dict[str, str], derived: str) -> None:
    assert Settings.model_validate(stated).derived_bucket == derived


def test_the_longest_name_under_a_prefix_is_one_that_confluent_takes() -> None:
    with pytest.raises(TopicbergError, match="TOPICBERG_PREFIX"):
        Settings(prefix="p" * 37)
    with pytest.raises(TopicbergError, match="TOPICBERG_BUCKET"):
        Settings(bucket="No_Bucket")
    names = Names(Settings(prefix="p" * 36).prefix)
    assert max(len(names.service_account(role)) for role in ACCOUNTS) == 64


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [({}, True), ({"compute": "none"}, False), ({"spark_remote": "sc://spark:15002"}, False)],
)
def test_open_catalog_is_out_of_reach_of_emr(given: dict[str, Any], is_refused: bool) -> None:
    config = Settings.model_validate(
        {"deployment": "cloud", "snowflake_catalog": "open_catalog", **given}
    )
    with pytest.raises(TopicbergError) as caught:
        load({}, config)
    assert ("no network but to AWS" in caught.value.message) == is_refused


UNITY = {
    "workspace_url": "https://dbc-1.cloud.databricks.com",
    "catalog": "lake",
    "client_id": "principal",
    "client_secret": "quiet",
}


def with_unity(**given: str) -> Settings:
    return CLOUD.model_copy(update={"unity": UnitySettings.model_validate(given)})


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("missing", [name for name in UNITY if "secret" not in name])
def test_unity_login_that_is_incomplete_names_what_is_missing(missing: str) -> None:
    given = {name: value for name, value in UNITY.items() if name != missing}
    with pytest.raises(TopicbergError) as caught:
        load(RIGHT, with_unity(**given))
    (line,) = caught.value.message.splitlines()[1:]
    assert line.strip().startswith(f"TOPICBERG_UNITY__{missing.upper()}: missing; TOPICBERG_UNITY_")
    assert "quiet" not in line


@pytest.mark.parametrize(
    ("catalog", "has_unity", "missing"),
    [
        ("glue", False, None),
        ("glue", True, "TOPICBERG_UNITY__CLIENT_SECRET"),
        ("iceberg_rest", False, "TOPICBERG_CATALOG__CLIENT_SECRET"),
        ("open_catalog", True, "TOPICBERG_CATALOG__CLIENT_SECRET, TOPICBERG_UNITY__CLIENT_SECRET"),
    ],
)
def test_create_needs_the_secrets_of_clients(
    catalog: str, has_unity: bool, missing: str | None
) -> None:
    unity = UNITY if has_unity else {}
    config = Settings.model_validate({"snowflake_catalog": catalog, "unity": unity})
    complete = {"catalog": {"client_secret": "hush"}}
    check_secrets(config, DeploySettings.model_validate({**RIGHT, **complete}))
    deploy = DeploySettings.model_validate(RIGHT)
    unity = {name: value for name, value in unity.items() if "secret" not in name}
    config = Settings.model_validate({"snowflake_catalog": catalog, "unity": unity})
    if missing is None:
        check_secrets(config, deploy)
        return
    with pytest.raises(TopicbergError, match=f"missing: {missing}\n"):
        check_secrets(config, deploy)


@pytest.mark.usefixtures("aws")
def test_unity_catalog_needs_tableflow_of_confluent() -> None:
    assert load(RIGHT, with_unity(**UNITY))
    given = {"deployment": "cloud", "tableflow": "topicberg", "unity": UNITY}
    with pytest.raises(TopicbergError, match="TOPICBERG_TABLEFLOW is topicberg"):
        load(RIGHT, Settings.model_validate(given))


@pytest.mark.parametrize("url", ["dbc-1.cloud.databricks.com", "http://dbc-1", "https://dbc-1/x"])
def test_unity_workspace_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(TopicbergError, match="TOPICBERG_UNITY__WORKSPACE_URL"):
        Settings.model_validate({"unity": {"workspace_url": url}})


def test_unity_catalog_needs_a_delta_table() -> None:
    config = with_unity(**UNITY)
    (spec,) = [one for one in load_topics() if one.name == "stock_trades"]
    check_specs(Settings(), [spec])
    check_specs(config, [])  # those that match a pattern may come
    with pytest.raises(TopicbergError, match="no topic has DELTA"):
        check_specs(config, [spec])
    document = spec.model_dump(by_alias=True)
    document["tableflow"]["table_formats"] = ["ICEBERG", "DELTA"]
    delta = TopicSpec.model_validate(document)
    check_specs(config, [spec, delta])


@pytest.mark.parametrize(
    ("release", "given", "is_refused"),
    [
        ("emr-spark-8.1.0", {}, False),
        ("emr-spark-8.1.0-20261101", {}, False),
        ("emr-spark-10.0.0", {}, False),
        ("emr-spark-8.0.0", {}, True),
        ("emr-7.14.0", {}, True),
        ("emr-spark-8.0.0", {"compute": "none"}, False),
    ],
)
def test_release_of_emr_with_an_earlier_spark_is_refused(
    release: str, given: dict[str, Any], is_refused: bool
) -> None:
    config = Settings.model_validate({"deployment": "cloud", "emr": {"release": release}, **given})
    with pytest.raises(TopicbergError) as caught:
        load({}, config)
    assert (f"{release} has no Spark 4.1" in caught.value.message) == is_refused


def test_plan_says_what_is_not_computed() -> None:
    specs, on_emr = load_topics(), Settings(deployment="cloud")
    listed = uncomputed(on_emr, specs)
    assert "published topics: airline.flight" in listed[0]
    assert listed[1] == "histories: sample_data_users_history"
    without = on_emr.model_copy(update={"compute": "none"})
    assert uncomputed(without, specs) == ["derived tables and upsert views", *listed]
    assert not uncomputed(Settings(), specs)
    assert not uncomputed(Settings(deployment="cloud", spark_remote=SecretStr("sc://s")), specs)
    lake = Lake(on_emr, tuple(specs), tuple(find_derived()))
    assert not any(lake.published(derived) for derived in lake.derived)
    left_out = {"sample_data_users_history", "trades_by_region"}
    assert not left_out & {table.name for table in lake.tables}
    assert "stock_trades_with_totals" in {table.name for table in lake.tables}
    assert uncomputed(on_emr, specs, ["trades_by_region"])[2].endswith(": trades_by_region")
