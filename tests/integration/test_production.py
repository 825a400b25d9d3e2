"""The files in docs/production fit the project, the versions it locks, and a real Postgres."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import botocore.session
import click
import dagster as dg
import pytest
import yaml
from botocore.validate import ParamValidator
from dagster._cli import create_dagster_cli
from dagster._config import process_config
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._daemon.cli import create_dagster_daemon_cli
from dagster_aws.ecs import EcsRunLauncher
from dagster_aws.ecs.container_context import EcsContainerContext
from dagster_k8s.container_context import K8sContainerContext
from dagster_postgres.run_storage import PostgresRunStorage
from dagster_webserver.cli import create_dagster_webserver_cli
from pydantic_settings import BaseSettings
from repository import PROJECT_ROOT
from typer.testing import CliRunner

from topicberg.alerts.settings import AlertSettings
from topicberg.cli import app
from topicberg.dagster.events import forget_events
from topicberg.endpoints.cloud import CloudSettings
from topicberg.kafka.group import PARTITIONS
from topicberg.logins.catalog import CatalogSettings
from topicberg.logins.kafka import KafkaSettings
from topicberg.logins.registry import RegistrySettings
from topicberg.settings import Settings
from topicberg.tableflow.service.metrics import StatusCollector
from topicberg.topics import load_topics
from topicberg_deploy.confluent.connect import QUICKSTARTS
from topicberg_deploy.settings import DeploySettings
from topicberg_local.ports import choose

FOLDER = PROJECT_ROOT / "docs" / "production"
PROGRAMS: dict[str, Callable[[], click.Command]] = {
    "dagster": create_dagster_cli,
    "dagster-daemon": create_dagster_daemon_cli,
    "dagster-webserver": create_dagster_webserver_cli,
}


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return loaded


def parse(words: list[str]) -> None:
    """As Dagster's own command line does, without running anything.

    :raises click.UsageError: no such command or option
    """
    command: click.Command = PROGRAMS[words[0]]()
    words = words[1:]
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise click.UsageError(f"no command {name}")
        command = found
    command.make_parser(click.Context(command)).parse_args(list(words))


def dagster_version() -> str:
    (version,) = re.findall(
        r"^dagster==(\S+)", (PROJECT_ROOT / "requirements.lock").read_text(), re.M
    )
    return version


# --- container file ---


def instructions(name: str, file: str = "Dockerfile") -> list[list[str]]:
    text = (FOLDER / file).read_text().replace("\\\n", " ")
    return [line.split()[1:] for line in text.splitlines() if line.startswith(f"{name} ")]


def copied() -> list[str]:
    return [source for *sources, _ in instructions("COPY") for source in sources]


def test_the_image_holds_what_it_needs_and_no_secret() -> None:
    ignore = (PROJECT_ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    for source in copied():
        assert (PROJECT_ROOT / source).exists(), source
        assert f"!{source}" in ignore, source
    assert {line[1:] for line in ignore if line.startswith("!")} == set(copied())
    installed = re.findall(r"--editable (\S+)", (FOLDER / "Dockerfile").read_text())
    assert len(installed) > 1
    assert not {*installed} & {*ignore}, "what is installed is not left out"
    assert instructions("USER") == [["topicberg"]]
    (words,) = re.findall(r"^CMD (\[.*\])$", (FOLDER / "Dockerfile").read_text(), re.M)
    parse(yaml.safe_load(words))


def test_image_has_the_guarded_web_server() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert "ln -sf topicberg-webserver .venv/bin/dagster-webserver" in text
    scripts = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["topicberg-webserver"] == "topicberg.dagster.webserver:main"
    for name in ("webserver", "viewer"):
        service = document("compose.yaml")["services"][name]
        assert service["command"][0] == "dagster-webserver"
        assert service["read_only"]


@pytest.mark.slow
def test_the_code_location_loads_from_what_is_copied(tmp_path: Path) -> None:
    """In the cloud deployment, with no account and no network."""
    for source in copied():
        if (PROJECT_ROOT / source).is_dir():
            shutil.copytree(PROJECT_ROOT / source, tmp_path / source)
        else:
            shutil.copy(PROJECT_ROOT / source, tmp_path / source)
    count = "len(list(defs.resolve_asset_graph().get_all_asset_keys()))"
    code = f"from definitions import defs; print({count})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": f"{tmp_path}:{tmp_path / 'platform'}",
            "TOPICBERG_DEPLOYMENT": "cloud",
            "TOPICBERG_CLUSTER_ID": "lkc-1",
            "TOPICBERG_STATE_DIR": str(tmp_path / "state"),
            "TOPICBERG_ENV_FILE": os.devnull,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 20


# --- compose ---


def test_compose_publishes_only_on_loopback() -> None:
    services = document("compose.yaml")["services"]
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        assert not service["image"].endswith(":latest"), name
        assert re.search(r":\d", service["image"]), name
        if "command" in service and service.get("profiles") != ["generators"]:
            parse(service["command"])
    assert "--read-only" in services["viewer"]["command"]
    for path in [volume.split(":")[0] for volume in services["code"]["volumes"]]:
        assert not path.startswith(".") or (FOLDER / path).is_file(), path
    build = services["code"]["build"]
    assert (FOLDER / build["context"]).resolve() == PROJECT_ROOT
    assert (PROJECT_ROOT / build["dockerfile"]).is_file()


def test_the_example_environment_has_every_setting() -> None:
    lines = (FOLDER / "example.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    models: dict[str, tuple[type[BaseSettings], ...]] = {
        "": (CloudSettings, DeploySettings, Settings),
        "ALERT_": (AlertSettings,),
        "ICEBERG_REST_": (CatalogSettings,),
        "KAFKA_": (KafkaSettings,),
        "SCHEMA_REGISTRY_": (RegistrySettings,),
    }
    known = {
        f"TOPICBERG_{prefix}{name.upper()}"
        for prefix, several in models.items()
        for model in several
        for name in model.model_fields
    }
    stated = {name.partition("__")[0] for name in given}
    unknown = {name for name in stated if name.startswith("TOPICBERG_")} - known
    assert unknown == set()
    assert {
        f"TOPICBERG_{name.upper()}"
        for name, field in CloudSettings.model_fields.items()
        if field.is_required()
    } <= set(given)
    assert not any(value for name, value in given.items() if re.search("SECRET|PASSWORD|KEY", name))


# --- Helm ---


def test_helm_values() -> None:
    text, values = (FOLDER / "values.yaml").read_text(), document("values.yaml")
    assert set(re.findall(r"\b\d+\.\d+\.\d+\b", text)) == {dagster_version(), "1.0.0"}
    (deployment,) = values["dagster-user-deployments"]["deployments"]
    parse(["dagster", "api", "grpc", *deployment["dagsterApiGrpcArgs"]])
    assert deployment["includeConfigInLaunchedRuns"]["enabled"]  # or its runs have no secrets
    assert values["dagsterWebserver"]["enableReadOnly"]
    assert values["postgresql"]["enabled"] is False
    assert not re.search(r"(?i)password: *\S", text)


def test_helm_containers_cannot_write_or_gain_rights() -> None:
    values = document("values.yaml")
    (deployment,) = values["dagster-user-deployments"]["deployments"]
    run = values["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    run_pod, run_container = run["podSpecConfig"], run["containerConfig"]
    pods = [deployment, values["dagsterWebserver"], values["dagsterDaemon"]]
    for container in (*(pod["securityContext"] for pod in pods), run_container["securityContext"]):
        assert container["readOnlyRootFilesystem"]
        assert not container["allowPrivilegeEscalation"]
        assert container["capabilities"] == {"drop": ["ALL"]}
    for pod in (*(pod["podSecurityContext"] for pod in pods), run_pod["securityContext"]):
        assert pod["runAsNonRoot"]
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    for pod in pods:  # all from the image whose web server is guarded
        assert pod["image"] == deployment["image"]
        assert {one["name"] for one in pod["volumeMounts"]} <= {
            one["name"] for one in pod["volumes"]
        }


def test_helm_service_accounts_have_roles() -> None:
    """The chart takes these fields of a service account; runs get that of the code location."""
    values, roles = document("values.yaml"), set[str]()
    for pods in (values, values["dagster-user-deployments"]):
        assert pods["serviceAccount"].keys() <= {"create", "name", "annotations"}
        roles.add(pods["serviceAccount"]["annotations"]["eks.amazonaws.com/role-arn"])
    assert len(roles) == 2


# --- Dagster+ and ECS ---


def test_dagster_plus_location_is_what_agents_take() -> None:
    """https://docs.dagster.io/deployment/code-locations/dagster-cloud-yaml"""
    (location,) = document("dagster_cloud.yaml")["locations"]
    context, source = location.pop("container_context"), location.pop("code_source")
    fields = "location_name build working_directory image executable_path attribute agent_queue"
    assert location.keys() <= {*fields.split()}
    assert (PROJECT_ROOT / source["python_file"]).is_file()
    assert location["working_directory"] == instructions("WORKDIR")[0][0]
    ecs = EcsContainerContext.create_from_config({"ecs": context["ecs"]})
    k8s = K8sContainerContext.create_from_config({"k8s": context["k8s"]})
    assert ecs.env_vars == context["k8s"]["env_vars"]
    assert k8s.run_k8s_config.pod_spec_config["service_account_name"] == "topicberg"
    page = (PROJECT_ROOT / "docs" / "dagster-plus.md").read_text()
    install = "RUN /opt/topicberg/.venv/bin/python -m pip install --no-cache-dir dagster-cloud"
    assert f"USER root\n{install}=={dagster_version()}\nUSER topicberg\n" in page


def test_ecs_task_and_service_are_requests_of_aws() -> None:
    model = botocore.session.get_session().get_service_model("ecs")
    task, service = document("ecs-task.json"), document("ecs-service.json")
    for request, name in ((task, "RegisterTaskDefinition"), (service, "CreateService")):
        shape: Any = model.operation_model(name).input_shape
        report = ParamValidator().validate(request, shape)
        assert not report.has_errors(), report.generate_report()
    containers = {one["name"]: one for one in task["containerDefinitions"]}
    balanced = service["loadBalancers"][0]
    ports = containers[balanced["containerName"]]["portMappings"]
    assert [balanced["containerPort"]] == [one["containerPort"] for one in ports]
    # Of two daemons, each would evaluate every sensor.
    assert service["desiredCount"] == 1
    assert service["deploymentConfiguration"]["maximumPercent"] == 100
    parse(containers["code"]["healthCheck"]["command"][1:])
    shared = {each["name"] for each in containers["daemon"]["environment"]}
    for container in containers.values():
        assert shared <= {each["name"] for each in container["environment"]}
        assert container["secrets"] == containers["daemon"]["secrets"]
        if "command" in container:
            parse(container["command"])
    image = {"name": "DAGSTER_CURRENT_IMAGE", "value": containers["code"]["image"]}
    assert image in containers["code"]["environment"]
    for source in instructions("COPY", "ecs.Dockerfile")[0][:-1]:
        assert (FOLDER / source).is_file()
    assert document("workspace.yaml")["load_from"][0]["grpc_server"]["host"] == "code"
    parts = [(FOLDER / name).read_text() for name in ("dagster.yaml", "ecs-launcher.yaml")]
    launcher = yaml.safe_load("".join(parts))["run_launcher"]
    untyped: Any = EcsRunLauncher
    assert process_config(untyped.config_type(), launcher["config"]).success


def test_network_policy_lets_only_dagster_reach_the_code() -> None:
    code, runs = yaml.safe_load_all((FOLDER / "network-policy.yaml").read_text())
    (deployment,) = document("values.yaml")["dagster-user-deployments"]["deployments"]
    assert code["spec"]["podSelector"]["matchLabels"]["deployment"] == deployment["name"]
    (rule,) = code["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": deployment["port"]}]
    assert "ingress" not in runs["spec"]
    for policy in (code, runs):
        assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_engines_share_a_directory_and_gain_no_rights() -> None:
    found = {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "engine.yaml").read_text())}
    engines, scaled = found["StatefulSet"]["spec"], found["ScaledObject"]["spec"]
    (container,) = engines["template"]["spec"]["containers"]
    (deployment,) = document("values.yaml")["dagster-user-deployments"]["deployments"]
    image = deployment["image"]
    assert container["image"] == f"{image['repository']}:{image['tag']}"
    assert container["securityContext"] == deployment["securityContext"]
    assert engines["template"]["spec"]["securityContext"] == deployment["podSecurityContext"]
    words = container["command"]
    assert words.pop(0) == "topicberg"
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0, done.output
    (claim,) = [v for v in engines["template"]["spec"]["volumes"] if "persistentVolumeClaim" in v]
    volume = found["PersistentVolumeClaim"]
    assert claim["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    target = {"kind": "StatefulSet", "name": found["StatefulSet"]["metadata"]["name"]}
    assert target.items() <= scaled["scaleTargetRef"].items()
    (trigger,) = scaled["triggers"]
    (metric,) = re.findall(r"topicberg_\w+", trigger["metadata"]["query"])
    assert metric in {one.name for one in StatusCollector(list, "one").collect()}
    assert scaled["maxReplicaCount"] <= PARTITIONS


def test_generators_run_what_no_connector_generates() -> None:
    """On one machine and on Kubernetes, with the rights of an engine."""
    generated = {spec.name: spec.generator for spec in load_topics() if spec.generator}
    wanted = {name for name, one in generated.items() if one.kind not in QUICKSTARTS}
    found = {
        one["kind"]: one for one in yaml.safe_load_all((FOLDER / "generators.yaml").read_text())
    }
    pod = found["Deployment"]["spec"]["template"]["spec"]
    services = document("compose.yaml")["services"].values()
    for commands in (
        [one["command"] for one in pod["containers"]],
        [one["command"] for one in services if one.get("profiles") == ["generators"]],
    ):
        assert {command[3] for command in commands} == wanted
        for command in commands:
            assert command[:3] == ["topicberg", "datagen", "start"]
            done = CliRunner().invoke(app, [*command[1:], "--help"])
            assert done.exit_code == 0, done.output
    documents = list(yaml.safe_load_all((FOLDER / "engine.yaml").read_text()))
    (engine,) = [one["spec"] for one in documents if one["kind"] == "StatefulSet"]
    engine = engine["template"]["spec"]
    assert pod["securityContext"] == engine["securityContext"]
    for container in pod["containers"]:
        assert container["securityContext"] == engine["containers"][0]["securityContext"]
        assert container["image"] == engine["containers"][0]["image"]
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    assert {"claimName": claim} in [one.get("persistentVolumeClaim") for one in pod["volumes"]]
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_guarded_web_server_takes_dagsters_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topicberg.dagster.webserver", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert dagster_version() in done.stdout


# --- Dagster's instance ---


@pytest.fixture
def postgres() -> Iterator[int]:
    """A Postgres of its own; its port. It refuses to run as root: it is another user's then."""
    user: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    port = choose({}, {})["kafka"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with TemporaryDirectory() as folder:  # the tests' own temporary folder is ours alone
        if user:
            shutil.chown(folder, user["user"])
        data = Path(folder) / "data"
        command = ["initdb", "-D", str(data), "-U", "dagster", "--auth", "trust", "--no-sync"]
        subprocess.run(command, check=True, cwd="/", **quiet, **user)
        command = ["postgres", "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"]
        with subprocess.Popen(command, cwd="/", **quiet, **user) as server:
            try:
                ready = ["pg_isready", "-h", "127.0.0.1", "-p", str(port)]
                while subprocess.run(ready, **quiet).returncode:
                    assert server.poll() is None
                    time.sleep(0.2)
                yield port
            finally:
                server.terminate()


@pytest.mark.skipif(shutil.which("initdb") is None, reason="no Postgres")
def test_the_instance_on_postgres(
    postgres: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    text = (FOLDER / "dagster.yaml").read_text()
    text = text.replace("port: 5432", f"port: {postgres}")
    (home / "dagster.yaml").write_text(text)
    environment = {
        "DAGSTER_POSTGRES_HOST": "127.0.0.1",
        "DAGSTER_POSTGRES_USER": "dagster",
        "DAGSTER_POSTGRES_PASSWORD": "x",
        "DAGSTER_POSTGRES_DB": "postgres",
        "DAGSTER_LOGS_BUCKET": "logs",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    @dg.asset
    def one() -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"rows": 1})

    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert isinstance(instance.run_storage, PostgresRunStorage)
        assert instance.run_retries_enabled
        assert instance.get_concurrency_config().run_queue_config is not None
        assert dg.materialize([one], instance=instance).success
        assert instance.get_latest_materialization_event(dg.AssetKey("one")) is not None
        for number in range(3):
            reported = dg.AssetMaterialization("snapshots", metadata={"number": number})
            instance.report_runless_asset_event(reported)
            evaluation = dg.AssetCheckEvaluation(dg.AssetKey("snapshots"), "rows", True, {})
            instance.report_runless_asset_event(evaluation)
        assert isinstance(instance.event_log_storage, SqlEventLogStorage)
        keys = [dg.AssetKey("snapshots")]
        assert forget_events(instance.event_log_storage, datetime.now(UTC), keys) >= 6
        (left,) = instance.fetch_materializations(dg.AssetKey("snapshots"), limit=9).records
        assert left.asset_materialization.metadata["number"].value == 2
