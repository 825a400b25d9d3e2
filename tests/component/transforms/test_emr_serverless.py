"""Derived tables on EMR Serverless: its settings, the request, and every way a job run can end."""

import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import boto3
import dagster as dg
import pytest
from botocore.exceptions import ClientError
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.pipes import utils as pipes_utils
from dagster_pipes import (
    PipesContext,
    PipesDefaultContextLoader,
    PipesMappingParamsLoader,
    PipesS3MessageWriter,
)
from emr_service import (
    APPLICATION,
    ROLE,
    SERVICE,
    TOKEN,
    EmrServerless,
    Scripted,
    deployed,
    environment,
    properties,
    serving,
)
from pydantic import SecretStr
from pyspark.sql import SparkSession

from topicberg.clients.catalog import READ_ONLY, TABLES
from topicberg.endpoints import Endpoints, LakeEndpoints, SnowflakeEndpoint
from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.errors.meaning import classify
from topicberg.errors.table import CONFLICT, THROTTLED
from topicberg.logins.catalog import RestCatalog
from topicberg.orchestration.assets.derived import code_version
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.orchestration.emr import client, job
from topicberg.orchestration.emr.client import write_window_on_emr
from topicberg.settings import Settings, emr_settings
from topicberg.settings.models import EmrSettings
from topicberg.topics import load_topics
from topicberg.transforms import upsert_view
from topicberg.transforms.derived import FailedPartitionsError, WrittenWindow
from topicberg.transforms.emr import Failure, JobReport, JobRequest, start_job_run
from topicberg.transforms.windows import Window
from topicberg_local.emulators.aws.shapes import check

PARTITIONS = dg.HourlyPartitionsDefinition("2026-01-01-00:00")
WINDOW = Window(datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC))
WRITTEN = WrittenWindow(
    windows=[Window(None, WINDOW.end)],
    rows=3,
    rows_by_hour={490898: 3},
    snapshot_id=2**62,
    sources={"a.b": 7, "c": None},
)
COMPLETE = {
    "APPLICATION_ID": APPLICATION,
    "EXECUTION_ROLE_ARN": ROLE,
    "ENTRY_POINT": "local:///opt/topicberg/platform/topicberg/orchestration/emr/job.py",
    "LOG_URI": "s3://logs/emr/",
}
CONFIG = Settings(aws_account_id="123456789012")
GLUE = LakeEndpoints(iceberg_rest="https://glue.us-east-1.amazonaws.com/iceberg")

pytestmark = pytest.mark.usefixtures("_quick")


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(pipes_utils, "DEFAULT_SLEEP_INTERVAL", 0.05)
    monkeypatch.setattr(pipes_utils, "WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``setting(NAME=text)``: the settings of EMR Serverless, and no others."""

    def put(**given: str) -> None:
        for name, text in given.items():
            monkeypatch.setenv(f"TOPICBERG_EMR_JOBS__{name}", text)

    return put


def emr(**more: str) -> EmrSettings:
    return EmrSettings.model_validate(
        {name.lower(): text for name, text in (COMPLETE | more).items()}
    )


def test_without_settings_there_is_no_emr(setting: Callable[..., None]) -> None:
    assert emr_settings() is None
    setting(**dict.fromkeys(COMPLETE, ""))  # as in example.env
    assert emr_settings() is None


def test_complete_settings(setting: Callable[..., None]) -> None:
    setting(**COMPLETE)
    assert emr_settings() == emr()


@pytest.mark.parametrize("given", [*COMPLETE, "SPARK_SUBMIT_PARAMETERS"])
def test_half_set_settings_name_what_is_missing(setting: Callable[..., None], given: str) -> None:
    setting(**{given: COMPLETE.get(given, "--conf spark.executor.cores=2")})
    with pytest.raises(TopicbergError) as caught:
        emr_settings()
    for name in COMPLETE:
        assert (f"TOPICBERG_EMR_JOBS__{name}: missing" in str(caught.value)) == (name != given)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("APPLICATION_ID", "my application"),
        ("EXECUTION_ROLE_ARN", "topicberg-job"),
        ("ENTRY_POINT", "job.py"),
        ("ENTRY_POINT", "s3://bucket/job.jar"),
        ("LOG_URI", "/var/log"),
    ],
)
def test_wrong_settings_are_named(setting: Callable[..., None], name: str, text: str) -> None:
    setting(**COMPLETE | {name: text})
    with pytest.raises(TopicbergError, match=f"TOPICBERG_EMR_JOBS__{name}: String should match"):
        emr_settings()


@pytest.mark.parametrize("entry", ["s3://bucket/a/b.py", "local:///opt/x.py", "/opt/x.py"])
def test_entry_points(setting: Callable[..., None], entry: str) -> None:
    setting(**COMPLETE | {"ENTRY_POINT": entry})
    assert emr_settings()


def test_the_request_is_what_the_service_takes() -> None:
    request = start_job_run("t" * 300, emr(), CONFIG, GLUE)
    shape = SERVICE.operation_model("StartJobRun").input_shape
    assert check({**request, "clientToken": "1"}, shape) == ""
    assert check({**request, "clientToken": "1", "executionRoleArn": "x" * 20}, shape) != ""
    assert request["jobDriver"]["sparkSubmit"]["entryPoint"] == COMPLETE["ENTRY_POINT"]
    assert "s3://logs/emr/" in str(request["configurationOverrides"])


@pytest.mark.usefixtures("catalogs_are_properties")
def test_tables_of_glue_are_in_the_derived_bucket() -> None:
    """Glue's REST API goes by the account; a table's location is that of the bucket."""
    found: Any = GLUE.catalog(CONFIG)
    assert found["warehouse"] == "123456789012"
    assert found[TABLES] == f"s3://{CONFIG.bucket}-derived/"
    assert READ_ONLY not in found
    deployed: Any = GLUE.catalog(Settings(deployment="cloud", cluster_id="lkc-1"))
    assert deployed[READ_ONLY] == "lkc-1"


def test_the_users_parameters_win() -> None:
    more = "--conf spark.jars=/opt/iceberg.jar --conf spark.executor.cores=2"
    found = properties(start_job_run("t", emr(SPARK_SUBMIT_PARAMETERS=more), CONFIG, GLUE))
    assert (found["spark.jars"], found["spark.executor.cores"]) == ("/opt/iceberg.jar", "2")


def test_request_of_a_deployed_application_names_no_jar() -> None:
    given = {
        name.removeprefix("TOPICBERG_EMR_JOBS__").lower(): text
        for name, text in deployed(CONFIG, "0a1b").items()
    }
    request = start_job_run("t", EmrSettings.model_validate(given), CONFIG, GLUE)
    found = properties(request)
    assert "spark.jars" not in found
    code = f"s3://{CONFIG.bucket}/code/0a1b"
    assert found["spark.archives"] == f"{code}/topicberg.tar.gz#topicberg"
    assert request["jobDriver"]["sparkSubmit"]["entryPoint"] == f"{code}/job.py"


def test_job_run_with_the_jar_of_earlier_images_fails_as_in_a_real_account() -> None:
    jar = "/usr/share/aws/iceberg/lib/iceberg-spark3-runtime.jar"
    report = JobReport(written=WRITTEN)
    with (
        serving(saying(report, ("SUCCESS", ""))) as service,
        pytest.raises(TopicbergError, match=f"ended as FAILED: .*NoSuchFileException: {jar}"),
    ):
        computed(service, SPARK_SUBMIT_PARAMETERS=f"--conf spark.jars={jar}")


def test_job_request_contains_no_secret() -> None:
    lake = LakeEndpoints(
        iceberg_rest="http://rest", s3="http://s3", s3_secret_key=SecretStr("not-shown")
    )
    request = JobRequest.of("t", [WINDOW], CONFIG, lake).model_dump(mode="json")
    assert "not-shown" not in f"{request}{start_job_run('t', emr(), CONFIG, lake)}"
    back = JobRequest.model_validate(request)
    assert (back.windows, back.lake.s3) == ([WINDOW], "http://s3")
    assert back.config().aws_account_id == CONFIG.aws_account_id


def endpoints(service: EmrServerless) -> Endpoints:
    key = SecretStr("k")
    return Endpoints(
        kafka_bootstrap="",
        schema_registry="",
        iceberg_rest="http://rest",
        spark_connect="",
        snowflake=SnowflakeEndpoint(account="", user=""),
        s3=service.url,
        s3_access_key=key,
        s3_secret_key=key,
        aws=service.url,
        aws_access_key=key,
        aws_secret_key=key,
    )


def computed(service: EmrServerless, **more: str) -> WrittenWindow:
    """What an asset of Dagster gets from the job run that it starts."""
    written: list[WrittenWindow] = []

    @dg.asset(partitions_def=PARTITIONS, code_version="1")
    def table(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        written.append(
            write_window_on_emr(
                context, "flagged", [WINDOW], emr(**more), CONFIG, endpoints(service)
            )
        )

        return dg.MaterializeResult()

    dg.materialize([table], partition_key="2026-01-01-10:00")
    return written[0]


def saying(report: JobReport, *states: tuple[str, str]) -> Callable[[dict[str, Any]], Scripted]:
    """A job run that tells Dagster something before its last state, through the real Pipes."""

    def execute(request: dict[str, Any]) -> Scripted:
        variables = environment(request)

        def tell() -> None:
            s3 = boto3.client(
                "s3",
                endpoint_url=variables["AWS_ENDPOINT_URL_S3"],
                region_name=variables["AWS_DEFAULT_REGION"],
                aws_access_key_id="k",
                aws_secret_access_key="k",
            )
            pipes = PipesContext(
                PipesMappingParamsLoader(variables),
                PipesDefaultContextLoader(),
                PipesS3MessageWriter(s3),
            )
            assert JobRequest.model_validate(pipes.extras).windows == [WINDOW]
            assert pipes.code_version == "1"
            pipes.report_custom_message(report.model_dump(mode="json"))
            pipes.close()

        return Scripted(list(states), tell)

    return execute


def silent(*states: tuple[str, str]) -> Callable[[dict[str, Any]], Scripted]:
    return lambda request: Scripted(list(states))


def test_a_window_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    states = [("SUBMITTED", ""), ("QUEUED", ""), ("RUNNING", ""), ("SUCCESS", "")]
    with serving(saying(JobReport(written=WRITTEN), *states)) as service:
        assert computed(service) == WRITTEN
        assert all(path.startswith("/logs/emr/pipes/") for path in service.objects)
    started = service.requests[0][1]
    assert started["name"] == "topicberg flagged"
    assert started["tags"]["dagster/run-id"]
    logged = capfd.readouterr().err
    assert "Dashboard URL" in logged
    assert TOKEN not in logged
    assert "won't be able to receive" not in logged


def test_report_of_a_version_that_does_not_say_the_window_is_refused() -> None:
    """Rows that were written would be taken for a window that is past a retention."""
    document = JobReport(written=WRITTEN).model_dump(mode="json")
    del document["written"]["windows"]
    earlier = SimpleNamespace(model_dump=lambda mode: document)
    with (
        serving(saying(cast("JobReport", earlier), ("SUCCESS", ""))) as service,
        pytest.raises(TopicbergError, match=r"not Dagster's: .* lacks written\.windows") as caught,
    ):
        computed(service)
    assert "topicberg deploy create" in (caught.value.hint or "")


def test_a_conflict_in_the_job_is_one_here() -> None:
    failure = Failure.of(CommitConflictError("another writer", hint="wait"))
    with (
        serving(
            saying(JobReport(failure=failure), ("RUNNING", ""), ("FAILED", "exit 1"))
        ) as service,
        pytest.raises(CommitConflictError, match="another writer") as caught,
    ):
        computed(service)
    assert classify(caught.value) == CONFLICT
    assert f"s3://logs/emr/applications/{APPLICATION}/jobs/00job0/" in str(caught.value)


def test_mistake_in_the_job_is_reported_at_once() -> None:
    failure = Failure.of(ValueError("no column qty"))
    with (
        serving(saying(JobReport(failure=failure), ("FAILED", "exit 1"))) as service,
        pytest.raises(TopicbergError, match="ValueError: no column qty") as caught,
    ):
        computed(service)
    assert classify(caught.value) is None


def test_partitions_that_failed_in_the_job_leave_the_others_written() -> None:
    failure = Failure.of(TopicbergError("1 partition cannot be computed"))
    report = JobReport(failure=failure, written=WRITTEN)
    with (
        serving(saying(report, ("FAILED", "exit 1"))) as service,
        pytest.raises(FailedPartitionsError, match="1 partition cannot be computed") as caught,
    ):
        computed(service)
    assert caught.value.written == WRITTEN


def test_a_job_that_never_came_so_far() -> None:
    details = "Job failed, please check complete logs. ExitCode: 137"
    with (
        serving(silent(("SCHEDULED", ""), ("FAILED", details))) as service,
        pytest.raises(TopicbergError, match=r"flagged: job run 00job0 .*ExitCode: 137") as e,
    ):
        computed(service)
    assert classify(e.value) is None


def test_no_room_is_waited_for() -> None:
    details = (
        "ApplicationMaxCapacityExceededException: Worker could not be allocated as the "
        "application has exceeded maximumCapacity settings: [cpu: 4 vCPU]"
    )
    with serving(silent(("FAILED", details))) as service, pytest.raises(TopicbergError) as caught:
        computed(service)
    assert classify(caught.value) == THROTTLED


def test_job_cancelled_by_an_operator_is_reported() -> None:
    with (
        serving(silent(("RUNNING", ""), ("CANCELLING", "by an operator"))) as service,
        pytest.raises(TopicbergError, match="ended as CANCELLING: by an operator") as caught,
    ):
        computed(service)
    assert classify(caught.value) is None


def test_the_job_is_cancelled_with_the_run() -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    running = Scripted([("RUNNING", ""), ("RUNNING", "")], interrupt)
    with (
        serving(lambda request: running) as service,
        pytest.raises(DagsterExecutionInterruptedError),
    ):
        computed(service)
    assert service.operations()[-1] == "CancelJobRun"
    assert running.state() == ("CANCELLED", "")


def test_a_job_that_cannot_be_followed_is_cancelled() -> None:
    with serving(silent(("RUNNING", ""))) as service:
        service.dashboards = False
        with pytest.raises(ClientError, match="GetDashboardForJobRun"):
            computed(service)
    assert service.operations()[-1] == "CancelJobRun"


def test_success_without_a_word_is_none() -> None:
    with (
        serving(silent(("SUCCESS", ""))) as service,
        pytest.raises(TopicbergError, match="found no report of it under s3://logs/emr/"),
    ):
        computed(service)


@pytest.mark.parametrize("table", ["flagged_stock_trades", "no_such_table"])
def test_a_job_of_other_code_computes_nothing(table: str) -> None:
    extras = JobRequest.of(table, [WINDOW], CONFIG, GLUE).model_dump(mode="json")
    pipes: Any = SimpleNamespace(extras=extras, code_version="of another commit")
    with pytest.raises(TopicbergError, match=f"table {table}: the code of .* is not Dagster's"):
        job._compute(pipes)


@pytest.fixture(autouse=True)
def _no_context_of_another_test() -> Iterator[None]:
    """Pipes keeps one context for a process."""
    yield
    PipesContext._instance = None


@pytest.mark.parametrize("table", ["flagged_stock_trades", "airline_skyone_by_route"])
def test_job_computes_tables_of_the_requesters_prefix(
    monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """The job's process has none of the settings of the one that requests it."""
    asked: dict[str, Any] = {}
    config = CONFIG.model_copy(update={"prefix": "demo", "cluster_id": "lkc-9"})
    monkeypatch.setattr(job, "write_window", lambda *given, **_: asked.update(plan=given[2]))
    monkeypatch.setattr(
        upsert_view,
        "refresh",
        lambda *given: asked.update(plan=given[2]) or SimpleNamespace(current_snapshot=str),
    )
    # Of the class: each use makes a builder of its own.
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: MagicMock())
    monkeypatch.setattr(LakeEndpoints, "catalog", lambda *_: None)
    lake = Lake(config, tuple(load_topics(config)), tuple(find_derived()))
    derived = lake.derived_by_name.get(table)
    windows = [WINDOW] if derived else []
    version = code_version(derived, lake) if derived else None
    extras = JobRequest.of(table, windows, config, GLUE).model_dump(mode="json")
    pipes: Any = SimpleNamespace(extras=extras, code_version=version)
    job._compute(pipes)
    plan = asked["plan"]
    sources = {source.table for source in plan.sources} if derived else {plan.source}
    assert plan.target[0].startswith("demo_")
    assert {namespace for namespace, _ in sources} == {"lkc-9"}


def test_login_to_the_topics_catalog_is_of_the_jobs_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an application of the user's, which reaches more than AWS."""
    login = RestCatalog.model_validate(
        {"uri": "https://open/api", "client_id": "c", "client_secret": "not-shown", "name": "t"}
    ).login("tableflow", vends=True)
    lake = GLUE.model_copy(update={"topics_rest": "https://open/api", "topics_login": login})
    sent = JobRequest.of("t", [WINDOW], CONFIG, lake).model_dump(mode="json")
    assert "not-shown" not in str(sent)
    back = JobRequest.model_validate(sent)
    with pytest.raises(TopicbergError, match="TOPICBERG_CATALOG"):
        back.endpoints()
    monkeypatch.setenv("TOPICBERG_CATALOG__CLIENT_SECRET", "not-shown")
    assert back.endpoints().topics_login == login
