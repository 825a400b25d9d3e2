"""Recipes of ARCHITECTURE.md, "To add …": each one is done, and works. Some are done in a copy of
the library: one that needs another file, or another place in a file, fails here first. The others
are those of docs/extend.md, done by a package outside of the library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from documents import blocks
from repository import PROJECT_ROOT

from topicberg import extensions
from topicberg.scaffolding.project import new_project

GROUPS = {f"topicberg.{name}" for name in re.findall(r"``topicberg\.(\w+)``", extensions.__doc__)}


@dataclass
class LibraryCopy:
    """A copy of the library in which a recipe adds and changes files."""

    folder: Path
    touched: set[str] = field(default_factory=set)
    """The files that the recipe has added or changed."""

    def add(self, file: str, text: str) -> None:
        path = self._path(file)
        assert not path.exists()
        path.write_text(dedent(text), encoding="utf-8")
        self.touched.add(file)

    def change(self, file: str, old: str, new: str) -> None:
        path = self._path(file)
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new), encoding="utf-8")
        self.touched.add(file)

    def _path(self, file: str) -> Path:
        return self.folder / ("" if file.startswith("topicberg_deploy/") else "topicberg") / file

    def run(self, code: str) -> None:
        """Run code with the copy instead of the library."""
        own = os.environ["PYTHONPATH"]
        paths = (self.folder, PROJECT_ROOT / "platform/local", PROJECT_ROOT / "tests/support", own)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", dedent(code)],
            cwd=PROJECT_ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.fixture
def library(tmp_path: Path) -> LibraryCopy:
    # With the compiled code, which is valid as long as the times of the files are the same.
    for package in ("topicberg", "deploy/topicberg_deploy"):
        place = tmp_path / "library" / Path(package).name
        shutil.copytree(PROJECT_ROOT / "platform" / package, place)
    return LibraryCopy(tmp_path / "library")


CSV_FORMAT = '''
    """Toy: values that are separated by semicolons. A schema is ``name:type,name:type``."""

    from pyiceberg.types import LongType, NestedField, StringType

    from topicberg.errors import TableflowError
    from topicberg.formats.columnar.program import NotCoveredError
    from topicberg.formats.reasons import MalformedError

    _TYPES = {"string": StringType(), "long": LongType()}


    def _columns(where, schema):
        pairs = [one.partition(":") for one in schema.text.strip().split(",")]
        if unknown := {kind for _, _, kind in pairs} - _TYPES.keys():
            raise TableflowError(f"{where}: unknown types: {', '.join(sorted(unknown))}")
        return {name: _TYPES[kind] for name, _, kind in pairs}


    def fields(where, schema, ids, message=None):
        columns = _columns(where, schema).items()
        return [NestedField(next(ids), name, kind, required=False) for name, kind in columns]


    def identity(schema, message=None):
        return None


    def is_union(schema):
        return False


    def as_record(schema, name):
        return schema


    def check_file(where, schema):
        pass


    def written(writer, latest, message=None):
        return frozenset(_columns(f"schema {writer.schema_id}", writer))


    def filled(pairing):
        return written(pairing.writer, pairing.latest)


    def program(code, places, pairing):
        raise NotCoveredError("there is no compiled code")


    def record_decoder(pairing):
        columns = _columns(f"schema {pairing.writer.schema_id}", pairing.writer)

        def decode(payload):
            values = payload.decode().split(";")
            if len(values) != len(columns):
                raise MalformedError(f"{len(values)} values, not {len(columns)}")
            pairs = zip(columns.items(), values)
            return {name: int(text) if kind == LongType() else text for (name, kind), text in pairs}

        return decode
'''


def test_recipe_of_a_format_decodes_records_in_four_files(library: LibraryCopy) -> None:
    library.add("formats/csv.py", CSV_FORMAT)
    library.change(
        "formats/subjects.py",
        'SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]',
        'SchemaType = Literal["AVRO", "JSON", "PROTOBUF", "CSV"]',
    )
    table = "formats/table.py"
    library.change(table, '"json", "protobuf"]', '"json", "protobuf", "csv"]')
    library.change(table, "_ENTRIES = (\n", '_ENTRIES = (\n    FormatEntry("csv", "CSV", "csv"),\n')
    library.change(
        "topics/rules.py",
        "_AS_A_TIME = {\n",
        '_AS_A_TIME = {\n    "csv": "have the producer write a time",\n',
    )
    assert len(library.touched) <= 4
    library.run("""
        import tempfile
        from pathlib import Path

        from plans import plan_of, rows_of
        from pyiceberg.catalog.memory import InMemoryCatalog
        from specs import Project, minimal

        from topicberg_deploy.confluent.kafka import RegistrySubject
        from topicberg.errors import SpecError
        from topicberg.tableflow.layout.layout import read_layout, table_schema
        from topicberg.topics import load_topic
        from topicberg.topics.discovery import FoundSchema, schema_file

        project = Project(Path(tempfile.mkdtemp()))
        project.schema("trades.csv", "side:string,quantity:long")
        project.topic(minimal(schema={"format": "csv", "file": "trades.csv", "framing": "none"}))
        spec = load_topic("trades", project.config)
        layout = read_layout(spec, None, project.config)
        catalog = InMemoryCatalog("test")
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", table_schema(spec, layout))
        plan, _ = plan_of(spec, layout, table)
        rows, rejected = rows_of(plan, [(None, b"BUY;3"), (None, b"SELL"), (None, b"SELL;4")])
        assert [(row["side"], row["quantity"]) for row in rows] == [("BUY", 3), ("SELL", 4)]
        assert rejected == {1: "1 values, not 2"}

        # Whatever names a format knows it: discovered topics, and subjects that deploy registers.
        assert FoundSchema(format="csv", version=1).format == "csv"
        assert schema_file(project.config, "trades", "value", "csv").suffix == ".csv"
        path = spec.schema_path("value", project.config)
        assert RegistrySubject("k", "s", file=path, format="csv")._body()["schemaType"] == "CSV"

        # A schema that the format refuses, and an event time that is no time, are findings.
        for text, event_time in (("side:number", "$$timestamp"), ("side:string", "side")):
            project.schema("trades.csv", text)
            schema = {"format": "csv", "file": "trades.csv", "framing": "none"}
            project.topic(minimal(schema=schema, event_time=event_time))
            try:
                load_topic("trades", project.config)
            except SpecError as error:
                assert "unknown types: number" in str(error) or "a time" in str(error), error
            else:
                raise AssertionError(text)
    """)


GROUP = '''
    """Toy: an IAM group."""

    from dataclasses import dataclass

    from topicberg_deploy.costs import Cost, Quota
    from topicberg_deploy.resource import Live, Resource


    @dataclass(frozen=True)
    class Group(Resource):
        kind = "IAM group"
        quota = Quota("IAM groups", 300, "account", "docs.aws.amazon.com/IAM")

        def find(self, context):
            iam = context.aws.client("iam")
            try:
                group = iam.get_group(GroupName=self.name)["Group"]
            except iam.exceptions.NoSuchEntityException:
                return None
            return Live(group["Arn"])

        def create(self, context):
            iam, path = context.aws.client("iam"), context.config.iam.path
            iam.create_group(GroupName=self.name, Path=path)

        def delete(self, context, live):
            context.aws.client("iam").delete_group(GroupName=self.name)

        def cost(self, config, live):
            return Cost(1.0, "a group")
'''


def test_recipe_of_a_cloud_resource_is_deployed_in_four_files(library: LibraryCopy) -> None:
    library.add("topicberg_deploy/aws/groups.py", GROUP)
    platform, permissions = "topicberg_deploy/platform.py", "topicberg_deploy/aws/permissions.py"
    calls = "topicberg_deploy/aws/calls.json"
    library.change(
        platform,
        "from topicberg_deploy.aws.iam import (\n",
        "from topicberg_deploy.aws.groups import Group\nfrom topicberg_deploy.aws.iam import (\n",
    )
    library.change(
        platform,
        '    yield Bucket("aws/bucket"',
        '    yield Group("aws/group", names.of("readers"))\n    yield Bucket("aws/bucket"',
    )
    library.change(
        permissions,
        '            "policy": self.policies,',
        '            "policy": self.policies,\n'
        '            "group": self.iam("group", names.of("readers")),',
    )
    for purpose, actions in (("plan", ["Get"]), ("deploy", ["Get", "Create", "Delete"])):
        added = "".join(f'  "iam:{action}Group": ["group"],\n' for action in actions)
        library.change(calls, f' "{purpose}": {{\n', f' "{purpose}": {{\n{added}')
    assert len(library.touched) <= 4
    library.run("""
        import os
        import tempfile
        from pathlib import Path

        from moto import mock_aws
        from pydantic import SecretStr

        from topicberg_deploy import engine
        from topicberg_deploy.aws.permissions import Deployed, policy
        from topicberg_deploy.context import DeployContext
        from topicberg_deploy.platform import costs, usage
        from topicberg_deploy.draw import lines
        from topicberg_deploy.platform import resources
        from topicberg_deploy.settings import DeploySettings
        from topicberg_deploy.graph.definitions import platform_assets
        from topicberg.settings import Settings

        os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        folder = Path(tempfile.mkdtemp())
        config = Settings(deployment="cloud", prefix="demo", state_dir=folder)
        deploy = DeploySettings(confluent_api_key="K", confluent_api_secret=SecretStr("S"))
        group, = (one for one in resources(config, []) if one.key == "aws/group")

        def planned(context):
            step, = engine.plan([group], context)
            return step.action

        def ignore(*_):
            pass

        with mock_aws():
            context = DeployContext(config, deploy, [], sleep=lambda _: None)
            assert planned(context) == "create"
            engine.create([group], context, ignore)
            assert planned(context) == "keep"
            assert engine.delete(engine.existing([group], context, ignore), context, ignore) == {}
            assert planned(context) == "create"

        # The previews of a plan, the picture, the assets and the permissions of users have it.
        assert [(one.usd, one.basis) for _, one in costs([group], config, {})] == [(1.0, "a group")]
        ((quota, used),) = usage([group], config).items()
        assert (quota.name, used) == ("IAM groups", 1)
        assert any('"aws/group"' in line for line in lines([group]))
        (platform,) = platform_assets(config, [])
        assert ["platform", "aws", "group"] in [key.path for key in platform.keys]
        of = Deployed(config, "123456789012", ())
        for purpose, action in (("plan", "iam:GetGroup"), ("deploy", "iam:CreateGroup")):
            allowed = policy(purpose, of)["Statement"]
            assert any(action in one["Action"] for one in allowed), action
    """)


SNAPSHOTS_CHECK = """
    from topicberg.checks.check import TableCheck
    from topicberg.checks.finding import Finding, good


    def snapshots_check():
        def evaluate(probe):
            if (count := len(probe.iceberg.snapshots())) < 2:
                return good(f"{count} snapshots")
            return Finding(what=f"{count} snapshots", remediation="expire some")

        return TableCheck("snapshots", "The table has few snapshots.", evaluate)
"""
COUNTS_ASSET = """
    import dagster as dg
    import pyarrow as pa

    from topicberg.iceberg.tables import find_table
    from topicberg.orchestration.assets.tables import own_operation


    def counts_asset(topic, counts):
        def compute(context, lakehouse, snowflake):
            catalog = lakehouse.catalog()
            rows = catalog.load_table(topic.identifier).scan().count()
            column = pa.table({"rows": pa.array([rows], pa.int64())})
            table = find_table(catalog, counts.identifier)
            (table or catalog.create_table(counts.identifier, column.schema)).append(column)
            return dg.MaterializeResult(asset_key=counts.key("iceberg"), metadata={"rows": rows})

        spec = dg.AssetSpec(counts.key("iceberg"), deps=[topic.key("iceberg")])
        return own_operation(spec.replace_attributes(group_name=counts.group), compute)
"""
COUNTS_KIND = """
    @dataclass(frozen=True, kw_only=True)
    class CountsTable(TableOfTopic):
        described = "counts of topic {topic}"
        requested_with_topic = "all"

        @classmethod
        def of(cls, spec, config):
            name = f"{spec.table_name}_counts"
            yield cls._of(spec, name, (spec.namespace(config), name), None, None)

        def iceberg_asset(self, lake):
            (topic,) = TopicTable.of(self.root, lake.config)
            return counts_asset(topic, self)

        def checks(self, lake):
            yield snapshots_check()


"""


def test_recipes_of_a_table_kind_and_of_its_check_work_in_three_files(library: LibraryCopy) -> None:
    library.add("checks/snapshots.py", SNAPSHOTS_CHECK)
    library.add("orchestration/assets/counts.py", COUNTS_ASSET)
    registry, assets = "orchestration/assets/registry.py", "from topicberg.orchestration.assets"
    imports = "from topicberg.checks.snapshots import snapshots_check\n"
    imports += f"{assets}.counts import counts_asset\n{assets}.derived import"
    library.change(registry, f"{assets}.derived import", imports)
    library.change(registry, "OF_TOPICS: ", f"{dedent(COUNTS_KIND)}OF_TOPICS: ")
    library.change(registry, "UpsertViewTable)\n", "UpsertViewTable, CountsTable)\n")
    assert len(library.touched) == 3
    library.run("""
        import tempfile
        from pathlib import Path
        from unittest.mock import patch

        import dagster as dg
        import pyarrow as pa
        from memory_instance import memory_instance
        from pyiceberg.catalog.sql import SqlCatalog
        from specs import Project, minimal

        from topicberg.checks.check import Probe
        from topicberg.orchestration.assets import Lake, lake_assets, lake_checks
        from topicberg.orchestration.jobs.pipelines import pipeline_jobs
        from topicberg.orchestration.jobs.watches import watches
        from topicberg.orchestration.resources import RESOURCES, Lakehouse
        from topicberg.topics import load_topics

        folder = Path(tempfile.mkdtemp())
        project = Project(folder / "project")
        project.topic(minimal(name="orders"))
        config = project.config
        catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
        for namespace in (config.topics_namespace, "shop"):
            catalog.create_namespace(namespace)
        rows = pa.table({"id": [1, 2, 3]})
        catalog.create_table((config.topics_namespace, "orders"), rows.schema).append(rows)
        lake = Lake(config, tuple(load_topics(config)), ())
        definitions = dg.Definitions(
            assets=list(lake_assets(lake)), asset_checks=list(lake_checks(lake)),
            jobs=list(pipeline_jobs(lake)), resources=RESOURCES, executor=dg.in_process_executor,
        )
        counts, = (one for one in lake.tables if one.name == "orders_counts")
        with (
            memory_instance() as instance,
            patch.object(Lakehouse, "catalog", lambda _: catalog),
            patch.object(Probe, "catalog", catalog),
        ):
            for passed in (True, False):
                ran = definitions.resolve_job_def("shop_pipeline").execute_in_process(
                    instance=instance, asset_selection=[counts.key("iceberg")]
                )
                found, = ran.get_asset_check_evaluations()
                assert (found.check_name, found.passed) == ("snapshots", passed), found
        found = catalog.load_table(counts.identifier).scan().to_arrow()
        assert found.to_pylist() == 2 * [{"rows": 3}]
        # Catalogs, the checks of catalogs, and the sensor of the topic have it as well.
        keys = {counts.key(system) for system in ("iceberg", "glue", "snowflake")}
        assert keys == {t.key(system) for t, system, some in lake.checks if some and t == counts}
        assert keys <= set(watches(lake)["orders"].registrations)
    """)


class Package:
    """A new project, and packages beside it that are found as if they were installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "packages"
        self.project = new_project("web-shop", folder, "topicberg").root
        self.variables: dict[str, str] = {}

    def install(self, name: str, files: Mapping[str, str], points: Mapping[str, Any]) -> None:
        """Write a distribution: its modules, and what an installer makes of its entry points."""
        groups = "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in named.items())
            for group, named in points.items()
        )
        about = f"{name}-1.0.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        described = {f"{about}/METADATA": metadata, f"{about}/entry_points.txt": groups}
        for file, text in {**files, **described}.items():
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        own = (self.folder, self.project / "src", PROJECT_ROOT / "tests/support")
        variables = {
            **os.environ,
            "COLUMNS": "200",
            "TOPICBERG_PROJECT_ROOT": str(self.project),
            "TOPICBERG_STATE_DIR": str(self.project / ".topicberg"),
            "PYTHONPATH": os.pathsep.join([*map(str, own), os.environ["PYTHONPATH"]]),
            **self.variables,
        }
        return subprocess.run(
            [str(Path(sys.executable).with_name(command[0])), *command[1:]],
            cwd=self.project,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def topicberg(self, *arguments: str) -> str:
        """Run a command that succeeds, and return what it prints."""
        done = self.run("topicberg", *arguments)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_package_of_docs_adds_catalog_channel_command_and_assets(package: Package) -> None:
    files = {}
    for _, text in blocks(PROJECT_ROOT / "docs/extend.md"):
        name, _, content = text.partition("\n")
        files[name.removeprefix("# ")] = content
    points = tomllib.loads(files.pop("pyproject.toml"))["project"]["entry-points"]
    assert set(points) | {"topicberg.stack"} == GROUPS
    package.install("acme", {**files, "acme/__init__.py": ""}, points)
    package.variables = {"TOPICBERG_CHAT_URL": "http://127.0.0.1:9/hush"}

    assert "List the tables that have a pointer." in package.topicberg("--help")
    listed = package.topicberg("settings", "TOPICBERG_CHAT_URL")
    assert "Gets alerts by POST." in listed
    assert "hush" not in listed
    done = package.run("python", "-W", "ignore", "-c", dedent(USE_OF_PACKAGE))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert package.topicberg("pointers").splitlines() == ["orders"]


USE_OF_PACKAGE = """
    import os
    import tempfile
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from json import loads
    from pathlib import Path
    from threading import Thread
    from unittest.mock import patch

    import dagster as dg
    import pyarrow as pa
    from memory_instance import memory_instance
    from pyiceberg.catalog.sql import SqlCatalog

    import topicberg
    from topicberg.alerts.alert import Alert, AlertState
    from topicberg.alerts.channels import channels, deliver
    from topicberg.alerts.settings import alert_settings
    from topicberg_local.python_services import alert_environment
    from topicberg.checks.check import CheckedTable, Probe, evaluate
    from topicberg.orchestration.catalogs.catalog import catalogs
    from topicberg.orchestration.resources import Lakehouse
    from topicberg.settings import settings

    # The graph has the catalog's asset and check of each table, and the assets of the package.
    defs = topicberg.definitions(project=Path.cwd())
    graph = defs.get_repository_def().asset_graph
    pointer = dg.AssetKey(["pointers", "orders"])
    assert dg.AssetCheckKey(pointer, "current") in graph.asset_check_keys
    index = dg.AssetKey(["acme", "index"])
    assert pointer in graph.get(index).parent_keys
    assert "current metadata" in graph.get(pointer).description
    assert {pointer, dg.AssetKey(["glue", "orders"])} <= graph.get_all_asset_keys()

    # They are computed and evaluated by a job of the project.
    folder = Path(tempfile.mkdtemp())
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalog.create_namespace(settings().topics_namespace)
    rows = pa.table({"id": [1, 2, 3]})
    table = catalog.create_table((settings().topics_namespace, "orders"), rows.schema)

    with (
        memory_instance() as instance,
        patch.object(Lakehouse, "catalog", lambda _: catalog),
        patch.object(Probe, "catalog", catalog),
    ):
        run = defs.resolve_job_def("check_tables").execute_in_process(
            instance=instance, asset_selection=[pointer]
        )
        evaluations = run.get_asset_check_evaluations()
        assert [(one.check_name, one.passed) for one in evaluations] == [("current", True)]
        assert Path("pointers/orders.txt").read_text() == table.metadata_location
        table.append(rows)
        (check,) = catalogs()["pointers"].checks(None)
        probe = Probe(CheckedTable("orders", table.name()), None, None, None)
        assert evaluate(check, probe).what == "the pointer is behind"

    # The channel gets what the file gets, with its own settings; so does the local engine.
    assert alert_environment()["TOPICBERG_CHAT_URL"].endswith("/hush")
    got = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if got[-1]["state"] == "firing" else 500)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Chat)
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ["TOPICBERG_CHAT_URL"] = f"http://127.0.0.1:{server.server_port}/hush"
    alert = Alert(
        key="k", title="t", what="w", severity="error", since="2026-01-01T00:00:00Z", link="u"
    )
    config = settings()
    state, problems = deliver(AlertState(), {"k": alert}, channels(config, alert_settings()))
    assert not problems, problems
    state, (problem,) = deliver(state, {}, channels(config, alert_settings()))
    assert [body["id"] for body in got] == ["k", "k"]
    assert "the alert channel chat" in problem and "hush" not in problem, problem
    assert len((config.state_dir / "alerts.jsonl").read_text().splitlines()) == 2
"""


BROKEN = """
    def fail(*_):
        raise ValueError("out of order")


    def strange(value: int | str) -> None:
        "No option of a command can be of this type."


    class Incomplete:
        name = "half"
        modules = ()


    class Orphan(Incomplete):
        name, source, pool = "orphan", "nowhere", None
        spec = register = is_current = checks = fail
"""


def test_package_that_fails_leaves_commands_graph_and_channels(package: Package) -> None:
    points = {
        "topicberg.commands": {
            "lost": "absent:app",
            "strange": "broken:strange",
            "topics": "broken:fail",
        },
        "topicberg.catalogs": {
            "glue": "broken:Orphan",
            "lost": "absent:CATALOG",
            "half": "broken:Incomplete",
            "orphan": "broken:Orphan",
        },
        "topicberg.alert_channels": {"lost": "absent:channel", "bad": "broken:fail"},
        "topicberg.definitions": {"lost": "absent:definitions", "bad": "broken:fail"},
        "topicberg.settings": {"lost": "absent"},
    }
    package.install("broken-package", {"broken.py": dedent(BROKEN)}, points)
    shown = package.topicberg("--help")
    assert "tableflow" in shown
    assert "the command topics of broken-package is left out" in shown
    assert "1 topic specs are valid" in package.topicberg("topics", "validate")
    for name in ("lost", "strange"):
        refused = package.run("topicberg", name, "--any")
        assert refused.returncode == 2
        assert f"broken-package: {'absent:app' if name == 'lost' else 'broken:strange'}" in (
            refused.stderr
        )
        assert "→ upgrade broken-package, or uninstall it" in refused.stderr
        assert "Traceback" not in refused.stderr
    done = package.run("python", "-W", "ignore", "-c", dedent(USE_OF_BROKEN_PACKAGE))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    for left_out in (
        "glue of topicberg.catalogs is left out: topicberg has that name",
        "absent:CATALOG (topicberg.catalogs) cannot be used",
        "broken:Incomplete (topicberg.catalogs) cannot be used: it is not a catalog: it lacks",
        "catalog orphan is left out: its source nowhere is none of iceberg, glue, snowflake",
        "absent:definitions (topicberg.definitions) cannot be used",
        "broken:fail (topicberg.definitions) cannot be used: ValueError: out of order",
    ):
        assert left_out in done.stderr
    assert "Traceback" not in done.stderr


USE_OF_BROKEN_PACKAGE = """
    from pathlib import Path

    import dagster as dg

    import topicberg
    from topicberg.alerts.alert import Alert, AlertState
    from topicberg.alerts.channels import channels, deliver
    from topicberg.alerts.settings import alert_settings
    from topicberg_local.python_services import alert_environment
    from topicberg.settings import settings

    keys = topicberg.definitions(Path.cwd()).get_repository_def().asset_graph.get_all_asset_keys()
    assert dg.AssetKey(["snowflake", "orders"]) in keys

    config, alert = settings(), Alert(
        key="k", title="t", what="w", severity="error", since="2026-01-01T00:00:00Z", link="u"
    )
    state, problems = deliver(AlertState(), {"k": alert}, channels(config, alert_settings()))
    assert ["cannot be used" in problem for problem in problems] == [True, True], problems
    assert len((config.state_dir / "alerts.jsonl").read_text().splitlines()) == 1
    alert_environment()
"""
