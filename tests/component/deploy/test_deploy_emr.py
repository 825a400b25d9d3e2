"""The EMR Serverless application of a deployment: its life, its rights, and its settings."""

from __future__ import annotations

import json
import shlex
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from emr_requests import arns
from moto import mock_aws
from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket
from own_aws import URL_VARIABLES, serving
from pydantic import SecretStr
from python_project import write_project

from topicberg.errors import TopicbergError
from topicberg.settings import DEPLOYED_EMR, Settings, emr_settings, read_deployment, settings
from topicberg.settings.models import EmrSettings
from topicberg.topics import load_topics
from topicberg_deploy import engine
from topicberg_deploy.aws import archive, emr
from topicberg_deploy.aws.bucket import LOG_DAYS
from topicberg_deploy.aws.parameters import note
from topicberg_deploy.context import CLUSTER, DeployContext
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Live, Resource, Step
from topicberg_deploy.settings import DeploySettings
from topicberg_local.emulators.aws.emr_serverless import EmrServerless
from topicberg_local.emulators.iam import Policies, Request, denial

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/topicberg:1"
WORKGROUP = "aws/athena_workgroup"
FACTS = {
    CLUSTER: Live("lkc-1"),
    "aws/bucket": Live("demo-123456789012"),
    "aws/derived_bucket": Live("demo-123456789012-derived"),
}
KEYS = ("aws/compute_bucket", WORKGROUP, emr.CODE_KEY, emr.APPLICATION, emr.POLICY, emr.ROLE)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmrServerless]:
    # moto evaluates no conditions and would deny everything in a bucket that demands TLS.
    monkeypatch.setattr(FakeBucket, "get_permission", lambda *_: PermissionResult.NEUTRAL)
    with serving() as (service, _, url), mock_aws():
        for name, value in {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            **dict.fromkeys(URL_VARIABLES, url),
        }.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture
def opened(
    service: EmrServerless, tmp_path: Path
) -> Callable[..., tuple[DeployContext, list[Resource]]]:
    """A deployment as a new process sees it, and its resources of EMR Serverless."""

    def opened(**changes: Any) -> tuple[DeployContext, list[Resource]]:
        given = {"deployment": "cloud", "prefix": "demo", "state_dir": tmp_path}
        new = {"emr": {"image": IMAGE} | changes.pop("emr", {})}
        config = Settings.model_validate(given | new | changes)
        deploy = DeploySettings(confluent_api_key="K", confluent_api_secret=SecretStr("S"))
        specs = [spec for spec in load_topics() if spec.name == "stock_trades"]
        return DeployContext(
            config,
            deploy,
            specs,
            sleep=lambda seconds: time.sleep(min(seconds, 0.05)),
            live=dict(FACTS),
        ), [one for one in resources(config, specs) if one.key in KEYS]

    return opened


def silent(*_: object) -> None:
    """Report nothing."""


def created(
    opened: Callable[..., tuple[DeployContext, list[Resource]]], **changes: Any
) -> DeployContext:
    context, graph = opened(**changes)
    engine.create(graph, context, silent)
    return context


def planned(
    opened: Callable[..., tuple[DeployContext, list[Resource]]], **changes: Any
) -> dict[str, Step]:
    context, graph = opened(**changes)
    return {s.resource.key: s for s in engine.plan(graph, context) if s.action != "keep"}


def deleted(opened: Callable[..., tuple[DeployContext, list[Resource]]]) -> dict[str, str]:
    context, graph = opened()
    return engine.delete(engine.existing(graph, context, silent), context, silent)


def states(service: EmrServerless) -> list[str]:
    return [one.state for one in service.applications.values()]


def test_create_makes_an_application_that_costs_nothing_idle(service: Any, opened: Any) -> None:
    context = created(opened)
    (application,) = service.applications.values()
    found = application.configuration
    assert found["releaseLabel"] == "emr-spark-8.1.0"
    assert found["maximumCapacity"] == {"cpu": "16 vCPU", "memory": "64 GB"}
    assert found["autoStartConfiguration"] == {"enabled": True}
    assert found["autoStopConfiguration"] == {"enabled": True, "idleTimeoutMinutes": 15}
    assert "initialCapacity" not in found
    assert application.tags == {"topicberg": "demo"}
    assert planned(opened) == {}
    rules = context.aws.client("s3").get_bucket_lifecycle_configuration(
        Bucket=context.aws.compute_bucket
    )["Rules"]
    expired = {one["Filter"]["Prefix"]: one["Expiration"] for one in rules if "Expiration" in one}
    assert expired == {folder: {"Days": LOG_DAYS} for folder in ("jobs/", "athena/")}


def test_drift_of_the_workgroup_is_changed_in_place(service: Any, opened: Any) -> None:
    athena = created(opened).aws.client("athena")
    updates = {"ResultConfigurationUpdates": {"OutputLocation": "s3://other/"}}
    athena.update_work_group(
        WorkGroup="demo_athena", ConfigurationUpdates=updates, State="DISABLED"
    )
    assert set(planned(opened)[WORKGROUP].changes) == {"results", "state"}
    created(opened)
    assert planned(opened) == {}
    found = athena.get_work_group(WorkGroup="demo_athena")["WorkGroup"]["Configuration"]
    location = found["ResultConfiguration"]["OutputLocation"]
    assert location == "s3://demo-123456789012-compute/athena/"


def test_capacity_and_release_change_in_place(service: Any, opened: Any) -> None:
    context = created(opened)
    identity = context.need(emr.APPLICATION).id
    context.aws.client("emr-serverless").start_application(applicationId=identity)
    changes = {"emr": {"max_vcpu": 32, "release": "emr-spark-8.2.0"}}
    step = planned(opened, **changes)[emr.APPLICATION]
    assert (step.action, set(step.changes)) == ("change", {"maximum_capacity", "release"})
    created(opened, **changes)
    assert planned(opened, **changes) == {}
    assert list(service.applications) == [identity]


def test_an_application_with_job_runs_is_not_changed(service: Any, opened: Any) -> None:
    created(opened)
    (application,) = service.applications.values()
    application.jobs["00job"] = "RUNNING"
    with pytest.raises(TopicbergError, match="cannot be changed while it has 1 job runs: 00job"):
        created(opened, emr={"max_vcpu": 32})


def test_delete_cancels_stops_and_leaves_nothing(service: Any, opened: Any) -> None:
    context = created(opened)
    (application,) = service.applications.values()
    context.aws.client("emr-serverless").start_application(applicationId=application.id)
    application.jobs |= {"00done": "SUCCESS", "00job": "RUNNING"}
    assert deleted(opened) == {}
    assert application.jobs == {"00done": "SUCCESS", "00job": "CANCELLED"}
    assert states(service) == ["TERMINATED"]
    assert context.aws.client("s3").list_buckets()["Buckets"] == []
    assert context.aws.client("iam").list_roles()["Roles"] == []
    assert context.aws.client("iam").list_policies(Scope="Local")["Policies"] == []


def test_a_second_one_of_ours_is_deleted_anothers_stays(service: Any, opened: Any) -> None:
    client = created(opened).aws.client("emr-serverless")
    more = {"releaseLabel": "emr-spark-8.0.0", "type": "SPARK", "name": "demo_spark"}
    client.create_application(**more, tags={"topicberg": "demo"})
    client.create_application(**more, tags={"team": "data"})
    assert set(planned(opened)[emr.APPLICATION].changes) == {"unused"}
    created(opened)
    assert states(service) == ["CREATED", "TERMINATED", "CREATED"]
    assert planned(opened) == {}


def test_without_compute_what_exists_is_deleted(service: Any, opened: Any) -> None:
    created(opened)
    for changes in ({"compute": "none"}, {"spark_remote": SecretStr("sc://spark:15002")}):
        plan = planned(opened, **changes)
        assert {key: step.action.value for key, step in plan.items()} == dict.fromkeys(
            (emr.APPLICATION, emr.POLICY, emr.ROLE), "delete"
        )
    created(opened, compute="none")
    assert states(service) == ["TERMINATED"]
    assert planned(opened, compute="none") == {}


def test_dagster_finds_the_application(
    service: Any, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On whatever machine: nothing is in the state directory."""
    context = created(opened)
    note(context)
    note(opened()[0])  # a part of the graph, in which the application is not looked at
    wanted = EmrSettings.model_validate(read_deployment(context.config)[0][DEPLOYED_EMR])
    assert wanted.application_id == context.need(emr.APPLICATION).id
    assert wanted.execution_role_arn.endswith(":role/demo_spark_job_role")
    assert wanted.log_uri == "s3://demo-123456789012-compute/jobs/"
    assert wanted.entry_point == "local:///opt/topicberg/job.py"
    assert "spark.dynamicAllocation.maxExecutors=3" in shlex.split(wanted.spark_submit_parameters)
    for name, value in {
        "DEPLOYMENT": "cloud",
        "PREFIX": "demo",
        "STATE_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"TOPICBERG_{name}", value)
    settings.cache_clear()
    try:
        assert emr_settings() == wanted
        monkeypatch.setenv("TOPICBERG_SPARK_REMOTE", "sc://spark:15002/;token=abc")
        settings.cache_clear()
        assert emr_settings() is None
        assert "abc" not in settings().model_dump_json()
        monkeypatch.setenv("TOPICBERG_COMPUTE", "emr")
        settings.cache_clear()
        assert emr_settings() == wanted
    finally:
        settings.cache_clear()


def test_role_of_job_runs_has_what_they_need_and_nothing_else(service: Any, opened: Any) -> None:
    context = created(opened)
    check_trust(context)
    check_requests_are_allowed(context)
    check_each_action_is_needed(context)
    check_writes(context)


def check_trust(context: DeployContext) -> None:
    """Only job runs of the application get the role."""
    role = context.aws.client("iam").get_role(RoleName="demo_spark_job_role")["Role"]
    (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
    arn = context.need(emr.APPLICATION).facts["arn"]
    assert statement["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert statement["Condition"]["ArnLike"] == {"aws:SourceArn": [arn, f"{arn}/*"]}


def check_requests_are_allowed(context: DeployContext) -> None:
    role = context.aws.client("iam").get_role(RoleName="demo_spark_job_role")["Role"]
    needs = arns(context.namespace, context.names.namespace("stock_trades"))
    assert denial(context.aws.client("iam"), context.aws.client("s3"), role, *needs) is None


def check_each_action_is_needed(context: DeployContext) -> None:
    """Without any of its actions, something that a job run requests is denied."""
    needs = arns(context.namespace, context.names.namespace("stock_trades"))
    whole = emr.emr_policy(context)["Statement"]
    assert len(whole) == 7
    for number, statement in enumerate(whole):
        for action in statement["Action"]:
            rest = [one for one in statement["Action"] if one != action]
            left = [*whole[:number], {**statement, "Action": rest}, *whole[number + 1 :]]
            policies = Policies(tuple(left))
            denied = [need for need in needs if policies.denial(Request(*need)) is not None]
            if action != "glue:GetCatalog":  # in two statements about the one catalog
                assert denied, f"nothing needs {action} on {statement['Resource']}"


def check_writes(context: DeployContext) -> None:
    """It writes derived tables and logs only."""
    writes: dict[str, set[str]] = {}
    for statement in emr.emr_policy(context)["Statement"]:
        assert "*" not in statement["Action"]
        resources = statement["Resource"]
        for arn in resources if isinstance(resources, list) else [resources]:
            for action in statement["Action"]:
                if not action.partition(":")[2].startswith(("Get", "List")):
                    writes.setdefault(arn, set()).add(action)
    glue, begin = {"glue:CreateTable", "glue:UpdateTable"}, "arn:aws:glue:us-east-1:123456789012"
    derived = {"s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    assert writes == {
        "arn:aws:s3:::demo-123456789012-derived/*": derived,
        "arn:aws:s3:::demo-123456789012-compute/jobs/*": {"s3:PutObject"},
        f"{begin}:catalog": glue,
        f"{begin}:database/demo_stock_trades": glue,
        f"{begin}:table/demo_stock_trades/*": glue,
    }


def test_code_is_uploaded_once_for_each_version(service: Any, opened: Any, tmp_path: Path) -> None:
    root = small_project(tmp_path / "clone")
    changes = {"emr": {"image": None}, "project_root": root}
    archive.version.cache_clear()
    context = created(opened, **changes)
    assert planned(opened, **changes) == {}
    found = emr.runtime_settings(context)
    assert found is not None
    version = context.need(emr.CODE_KEY).fields["version"]
    folder = f"s3://demo-123456789012-compute/code/{version}"
    assert found["entry_point"] == f"{folder}/job.py"
    archives = f"spark.archives={folder}/topicberg.tar.gz#topicberg"
    assert archives in found["spark_submit_parameters"]
    (root / "src" / "shop" / "new.py").write_text("x = 1\n")
    archive.version.cache_clear()
    assert set(planned(opened, **changes)[emr.CODE_KEY].changes) == {"version"}
    created(opened, **changes)
    archive.version.cache_clear()
    assert planned(opened, **changes) == {}


def small_project(root: Path) -> Path:
    """Make a project without dependencies: nothing is downloaded."""
    (root / "src" / "shop" / "__pycache__").mkdir(parents=True)
    (root / "src" / "shop" / "__init__.py").touch()
    (root / "src" / "shop" / "__pycache__" / "x.pyc").touch()
    (root / "topics").mkdir()
    (root / "topics" / "orders.yaml").touch()
    (root / "pyproject.toml").write_text(
        '[tool.topicberg]\ntopics = "topics"\npipelines = ["shop.pipelines"]\n'
    )
    (root / archive.LOCK).write_text("# nothing\npyspark==4.1.3 \\\n    --hash=sha256:0\n")
    return root


def test_archive_has_the_packages_of_a_project_and_their_data(tmp_path: Path) -> None:
    root = write_project(tmp_path / "project")
    (root / archive.LOCK).write_text("# nothing\n")
    (root / "topics/.hidden.yaml").touch()
    with archive.built(root) as path, tarfile.open(path) as tar:
        names = {one for one in tar.getnames() if one.startswith("project/")}
        first = path.read_bytes()
    code = {"__init__.py", "pipelines.py", "prices.py", "zones.json"}
    specs = {"pyproject.toml", "topics/parcels.yaml", "schemas/parcels.avsc", "src/rates.py"}
    expected = specs | {f"src/parcels/{name}" for name in code}
    assert names == {f"project/{name}" for name in expected}
    with archive.built(root) as path:
        assert path.read_bytes() == first


def test_archive_of_an_installed_project_has_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_project(tmp_path / "project")
    site = root / ".venv" / "site-packages"
    site.parent.mkdir()
    (root / "src").rename(site)
    monkeypatch.syspath_prepend(site)
    assert "project/src/parcels/prices.py" in archive._files(root)


def test_archive_has_topics_of_components(tmp_path: Path) -> None:
    root = write_project(tmp_path / "project")
    file = root / "pyproject.toml"
    file.write_text(file.read_text() + 'defs = "defs"\n')
    (root / "defs/orders").mkdir(parents=True)
    (root / "defs/orders/defs.yaml").write_text("type: topicberg.Topic\n")
    assert "project/defs/orders/defs.yaml" in archive._files(root)


def declare(root: Path, *requirements: str) -> None:
    """Let a project depend on packages."""
    file = root / "pyproject.toml"
    file.write_text(
        file.read_text().replace("dependencies = []", f"dependencies = {list(requirements)}")
    )


def test_dependencies_of_the_project_are_packed(tmp_path: Path) -> None:
    root = write_project(tmp_path / "project")
    before = {line.partition("==")[0] for line in archive._requirements(root).splitlines()}
    assert {"pandas", "dagster"} <= before  # pandas: what a pipeline imports
    assert not {"matplotlib", "pillow", "hypothesis"} & before
    declare(root, "topicberg[local]", "hypothesis>=6", 'pywin32; sys_platform == "win32"')
    (root / "src/parcels/charts.py").write_text("from matplotlib.figure import Figure\n")
    archive._needed_by_project.cache_clear()
    found = archive._requirements(root).splitlines()
    assert f"hypothesis=={version('hypothesis')}" in found
    names = {line.partition("==")[0] for line in found}
    assert {"matplotlib", "pillow", "sortedcontainers"} <= names
    assert not names & {"topicberg", "topicberg-local", "moto", "pyspark", "pywin32", "duckdb"}


def test_dependency_that_the_lock_file_lacks_is_named(tmp_path: Path) -> None:
    root = write_project(tmp_path / "project")
    (root / archive.LOCK).write_text("pydantic==2 --hash=sha256:0\n")
    assert archive._requirements(root).startswith("pydantic==2")
    declare(root, "hypothesis")
    with pytest.raises(TopicbergError, match=r"lock has no hypothesis, sortedcontainers"):
        archive._requirements(root)


def installed(folder: Path, name: str, *, is_pure: bool = True, editable: bool = False) -> None:
    """Write a distribution as pip installs it from a folder."""
    metadata = folder / f"{name}-1.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{name}.py").write_text("X = 1\n")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (metadata / "RECORD").write_text(f"{name}.py,,\n{name}-1.dist-info/METADATA,,\n")
    (metadata / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nRoot-Is-Purelib: {str(is_pure).lower()}\n"
    )
    origin = {"url": "file:///shared", "dir_info": {"editable": editable}}
    (metadata / "direct_url.json").write_text(json.dumps(origin))


def test_library_that_no_index_has_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, site = write_project(tmp_path / "project"), tmp_path / "site-packages"
    (root / archive.LOCK).unlink(missing_ok=True)
    installed(site, "postal_codes")
    monkeypatch.syspath_prepend(site)
    (root / "src/parcels/codes.py").write_text("import postal_codes\n")
    assert "postal" not in archive._requirements(root)
    assert archive._library_files(root) == {
        "site-packages/postal_codes.py": site / "postal_codes.py",
        "site-packages/postal_codes-1.dist-info/METADATA": site
        / "postal_codes-1.dist-info/METADATA",
    }
    shutil.rmtree(site)
    installed(site, "postal_codes", is_pure=False)
    archive._needed_by_project.cache_clear()
    with pytest.raises(TopicbergError, match=r"postal.codes was installed from .* compiled code"):
        archive._library_files(root)


def test_library_that_is_installed_in_place_is_packed_with_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, shared, site = write_project(tmp_path / "project"), tmp_path / "shared", tmp_path / "site"
    (shared / "post_common").mkdir(parents=True)
    (shared / "post_common" / "__init__.py").touch()
    installed(site, "post_common", editable=True)
    (site / "post_common.py").unlink()
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(shared)
    (root / "src/parcels/codes.py").write_text("import post_common\n")
    assert "project/src/post_common/__init__.py" in archive._files(root)
    assert "post-common" not in archive._requirements(root)


def test_project_for_a_later_python_is_refused(tmp_path: Path) -> None:
    root = write_project(tmp_path / "project")
    file = root / "pyproject.toml"
    file.write_text(file.read_text().replace(">=3.11", ">=3.12"))
    with pytest.raises(TopicbergError, match=r"requires Python >=3.12; .* with Python 3.11"):
        archive.version(root)


def test_image_is_built_from_the_archive_of_the_project_without_spark(tmp_path: Path) -> None:
    root, folder = small_project(tmp_path / "clone"), tmp_path / "image"
    archive.write_image_context(root, folder)
    assert {one.name for one in folder.iterdir()} == {"Dockerfile", "job.py", "topicberg.tar.gz"}
    lines = (folder / "Dockerfile").read_text().splitlines()
    assert "ADD topicberg.tar.gz /opt/topicberg/topicberg/" in lines
    assert lines[-1] == "USER hadoop:hadoop"
    with tarfile.open(folder / archive.ARCHIVE) as tar:
        names = set(tar.getnames())
    own = {"src/shop/__init__.py", "topics/orders.yaml", "pyproject.toml"}
    assert {name for name in names if name.startswith("project/")} == {f"project/{o}" for o in own}
    assert "library/topicberg/orchestration/emr/job.py" in names
    assert not [name for name in names if "pycache" in name or "pyspark" in name]


def test_dependencies_are_the_installed_ones_without_a_lock_file(tmp_path: Path) -> None:
    root = small_project(tmp_path / "clone")
    (root / archive.LOCK).unlink()
    found = archive._requirements(root).splitlines()
    assert f"pydantic=={version('pydantic')}" in found
    assert f"numba=={version('numba')}" in found
    names = {line.partition("==")[0] for line in found}
    assert not names & {"pyspark", "py4j", "topicberg", "topicberg-local", "pytest", "duckdb"}


def test_dependencies_that_are_missing_are_reported(tmp_path: Path) -> None:
    root = small_project(tmp_path / "clone")
    wrong = "no-such-package-of-topicberg==1 --hash=sha256:" + 64 * "0"
    (root / archive.LOCK).write_text(f"{wrong}\n")
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(TopicbergError, match="cannot be downloaded") as caught,
        archive.built(root),
    ):
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    assert "TOPICBERG_EMR__IMAGE" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"releaseLabel": "spark-4"}, "does not exist"),
        ({"type": "FLINK"}, "Unsupported engine"),
        ({"name": "with space"}, "does not match"),
        ({"maximumCapacity": {"cpu": "many", "memory": "1 GB"}}, "does not match"),
        ({"autoStopConfiguration": {"idleTimeoutMinutes": 99999}}, "10080"),
    ],
)
def test_the_emulator_refuses_as_aws_does(
    service: Any, changes: dict[str, Any], reason: str
) -> None:
    client = boto3.client("emr-serverless", region_name="us-east-1")
    request = {"releaseLabel": "emr-spark-8.0.0", "type": "SPARK", "name": "one"} | changes
    with pytest.raises(ClientError, match=reason):
        client.create_application(**request)


def test_the_emulator_keeps_to_the_states(service: Any) -> None:
    client = boto3.client("emr-serverless", region_name="us-east-1")
    made = client.create_application(releaseLabel="emr-spark-8.0.0", type="SPARK", name="one")
    here = {"applicationId": made["applicationId"]}
    with pytest.raises(ClientError, match=r"Current status: CREATING"):
        client.delete_application(**here)
    time.sleep(0.35)
    client.start_application(**here)
    time.sleep(0.35)
    with pytest.raises(ClientError, match=r"Current status: STARTED"):
        client.update_application(**here)
    job = {"sparkSubmit": {"entryPoint": "s3://b/job.py"}}
    role = "arn:aws:iam::123456789012:role/job"
    with pytest.raises(ClientError, match=r"(?s)UnsupportedOperation.*runs no jobs"):
        client.start_job_run(**here, executionRoleArn=role, jobDriver=job)
