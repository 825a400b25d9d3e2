"""What many tests need: one local stack, and no setting of the developer's own.

``TOPICBERG_TEST_STATE_DIR=<dir>`` keeps a stack between runs: start it with
``TOPICBERG_STATE_DIR=<dir> topicberg up``, and the tests use it and leave it running.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import pytest

FOREIGN = ("TOPICBERG_", "AWS_", "SNOWFLAKE_", "SPARK_", "DAGSTER_", "PYICEBERG_", "KAFKA_")
for _name in list(os.environ):
    if _name.startswith(FOREIGN) and not _name.startswith("TOPICBERG_TEST_"):
        del os.environ[_name]
os.environ |= {
    "TOPICBERG_ENV_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "PYTHONPATH": os.pathsep.join(
        [
            str(Path(__file__).parent / "support" / "python_start"),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
    ),
    # A stack that lives for minutes does not earn back what the optimizing compiler costs.
    # Without it, the JVM reserves too little memory for the code of Spark.
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}
# Pytest and the tests' processes use each other's compiled modules.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Temporary files stay in the checkout; pytest locks each session's folder against the others.
_TEMPORARY = Path(__file__).resolve().parents[1] / ".pytest_tmp"
_TEMPORARY.mkdir(exist_ok=True)
os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_TEMPORARY)

import certifi  # noqa: E402
import hypothesis  # noqa: E402
import python_start.sitecustomize  # noqa: E402, F401  for this process
import shared_stack  # noqa: E402
from botocore.loaders import JSONFileLoader  # noqa: E402
from clocks import Clock  # noqa: E402
from cryptography.hazmat.primitives import serialization  # noqa: E402
from dagster._core.storage.defs_state.base import DefsStateStorage  # noqa: E402
from pyiceberg.catalog.sql import SqlCatalog  # noqa: E402

from topicberg.clients import rsa  # noqa: E402
from topicberg.endpoints import Endpoints  # noqa: E402
from topicberg.errors import UnreachableError  # noqa: E402
from topicberg.settings import Settings, settings  # noqa: E402
from topicberg.spark import check_spark  # noqa: E402
from topicberg.tableflow.values.compiling import wait_ready  # noqa: E402
from topicberg_local import stack as local_stack  # noqa: E402
from topicberg_local import supervisor  # noqa: E402

if TYPE_CHECKING:
    from kafka_topics import Topic
    from pyspark.sql import SparkSession
    from scheduling import StackScheduling
    from xdist.remote import Producer

# Dagster would take that of an instance of another test: each instance sets it, and sets what was
# before when it is closed, or when its remains are garbage.
DefsStateStorage.get = staticmethod(lambda: None)  # type: ignore[method-assign]
# Each new session of botocore, and moto makes many, would read AWS's descriptions again.
_read_description = cache(JSONFileLoader().load_file)
JSONFileLoader.load_file = lambda _, path: _read_description(path)  # type: ignore[assignment,method-assign]
# Each client of a registry would read all public authorities, 40 ms each time. No test needs one.
_new_context, _public = ssl.create_default_context, {certifi.where(), os.getenv("SSL_CERT_FILE")}
ssl.create_default_context = lambda *given, cafile=None, **more: (
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if cafile in _public and not (given or more)
    else _new_context(*given, cafile=cafile, **more)
)
# No time limits: a busy machine is no failure. The same examples everywhere: no surprise in CI.
# Drawing more of the same examples each time finds nothing new.
hypothesis.settings.register_profile(
    "topicberg",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("topicberg")
hypothesis.settings.register_profile("few", max_examples=15)
# Each login to Snowflake reads its key twice, 27 ms each time, and generating one takes longer.
for _name in ("load_der_private_key", "load_pem_private_key"):
    setattr(serialization, _name, cache(getattr(serialization, _name)))
rsa.BITS = 2048
RECOVERY_SECONDS = 90.0
STACKLESS_NICENESS = 10
"""Of a worker without the stack: those with it often wait, and help when they have no more."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stack-workers",
        type=int,
        help="with --numprocesses: how many workers run tests that need the stack",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    with _shared_stack(session.config).compiling() if is_worker else nullcontext():
        return (yield)


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and tests stay


def pytest_sessionfinish() -> None:
    gc.freeze()  # the process ends: looking for garbage takes seconds


def pytest_configure(config: pytest.Config) -> None:
    stacks, worker = config.getoption("stack_workers"), os.environ.get("PYTEST_XDIST_WORKER")
    if stacks is not None and worker and int(worker.removeprefix("gw")) >= stacks:
        os.nice(STACKLESS_NICENESS)
    if config.getoption("markexpr") == "not slow":  # `make test-all` draws all examples
        hypothesis.settings.load_profile("few")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> StackScheduling | None:
    if config.getoption("stack_workers") is None:
        return None
    from scheduling import StackScheduling

    return StackScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test touches the checkout's own state."""
    with _state_dir(path := tmp_path_factory.mktemp("nothing-runs-here")):
        yield path


@pytest.fixture(scope="module", autouse=True)
def _stackless_state_dir(request: pytest.FixtureRequest, _own_state_dir: Path) -> Iterator[None]:
    """A file whose tests do not use the stack does not touch its state after others did."""
    is_stackless = request.node not in _files_with_stack(request.session)
    with _state_dir(_own_state_dir) if is_stackless else nullcontext():
        yield


@cache
def _files_with_stack(session: pytest.Session) -> set[pytest.Module | None]:
    with_stack = (one for one in session.items if "stack" in getattr(one, "fixturenames", ()))
    return {one.getparent(pytest.Module) for one in with_stack}


class WatchedCatalog(SqlCatalog):
    """A catalog whose commits a test may answer instead."""

    answer: Callable[..., Any] | None = None

    def commit_table(self, *given: Any) -> Any:
        return self.commit(*given) if self.answer is None else self.answer(*given)

    def commit(self, *given: Any) -> Any:
        """Commit to a table as every catalog does."""
        return super().commit_table(*given)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A real Iceberg catalog in a file, with the namespace ``shop``."""
    catalog = WatchedCatalog(
        "unit", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}"
    )
    catalog.create_namespace("shop")
    yield catalog
    catalog.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of this process, which a test moves."""
    return Clock(monkeypatch)


@pytest.fixture
def as_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Settings], None]]:
    """``as_settings(config)``: :func:`settings` are these until the test ends."""

    def use(config: Settings) -> None:
        for name in config.model_fields_set:
            monkeypatch.setenv(f"TOPICBERG_{name.upper()}", str(getattr(config, name)))
        settings.cache_clear()

    yield use
    settings.cache_clear()


@pytest.fixture
def catalogs_are_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that is loaded is the properties that it would have."""
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda _, **found: found)


@pytest.fixture
def impatient_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to a Kafka that does not answer fail soon."""
    monkeypatch.setattr("topicberg.kafka.topics.TIMEOUT_SECONDS", 2.0)


@pytest.fixture
def serve_endpoints(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """``serve_endpoints(endpoints)``: all commands use these until the test ends."""

    def use(found: object) -> None:
        monkeypatch.setattr("topicberg.endpoints.load_endpoints", lambda *_: found)

    return use


@cache
def _shared_stack(config: pytest.Config) -> shared_stack.SharedStack:
    """The stack of this run, or the one that ``TOPICBERG_TEST_STATE_DIR`` keeps."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    run = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    # If the temporary folders are deleted while a run ends, the next run has folders of the same
    # names, and what ends the stack of the one run must not find that of the other.
    stack = run / f"stack-{os.environ.get('PYTEST_XDIST_TESTRUNUID', uuid.uuid4().hex)[:8]}"
    kept = os.environ.get("TOPICBERG_TEST_STATE_DIR")
    return shared_stack.SharedStack(
        Path(kept).resolve() if kept else stack, locks=stack.with_name(f"{stack.name}-locks")
    )


_file_turn: ExitStack | None = None
"""The turn of the file whose tests this worker runs, from its first test with the stack."""


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the time limit of a test begins
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, bool | None, bool | None]:
    global _file_turn
    names, file = getattr(item, "fixturenames", ()), item.getparent(pytest.Module)
    try:
        if "stack" not in names:
            return (yield)
        shared = _shared_stack(item.config)
        if _file_turn is None:
            alone = file is not None and any(mark.name == "alone" for mark in file.own_markers)
            _file_turn = ExitStack()
            _file_turn.enter_context(shared.turn("file", alone=alone))
        alone = "kill_service" in names or item.get_closest_marker("alone") is not None
        with shared.turn("test", alone=alone):
            return (yield)
    finally:
        is_last = nextitem is None or nextitem.getparent(pytest.Module) is not file
        if is_last and _file_turn is not None:
            _file_turn.close()
            _file_turn = None


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, _own_state_dir: Path) -> Iterator[Endpoints]:
    """Endpoints of a running local stack; :func:`settings` is the stack's."""
    shared = _shared_stack(request.config)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: fixtures are torn down
    with _state_dir(shared.folder):
        try:
            with shared.starting():
                if not any(service.running for service in local_stack.status(settings())):
                    shared.note_that_we_started()
                endpoints = shared_stack.up(settings())
                wait_ready()
            yield endpoints
        finally:
            with shared.ending() as is_ours:
                if is_ours:
                    _end(shared.folder, keep=request.session.testsfailed > 0)


@pytest.fixture(scope="module")
def spark(stack: Endpoints) -> Iterator[SparkSession]:
    """A session of the stack's Spark."""
    from topicberg.testing import spark_session

    with spark_session() as session:
        yield session


def _end(folder: Path, *, keep: bool) -> None:
    if "TOPICBERG_TEST_STATE_DIR" in os.environ:
        local_stack.down(settings())
        return
    # A JVM that ends by itself writes its class archive: a minute on two cores.
    supervisor.end(supervisor.stack_processes(folder), patience=0)
    assert supervisor.stack_processes(folder) == []
    if not keep:
        shutil.rmtree(folder)


class KillService(Protocol):
    def __call__(self, name: str, *, wait: bool = True) -> int: ...


@pytest.fixture
def kill_service(stack: Endpoints) -> KillService:
    """``kill_service(name)``: SIGKILL; by default waits until it serves again. Returns the killed
    pid. A service that is being restarted is waited for first."""

    def kill(name: str, *, wait: bool = True) -> int:
        pid = _running_pid(name, other_than=None)
        process = psutil.Process(pid)
        process.kill()
        process.wait(RECOVERY_SECONDS)  # a JVM that ends still takes connections for a moment
        if wait:
            _running_pid(name, other_than=pid)
            shared_stack.up(settings())
        return pid

    return kill


def _running_pid(name: str, other_than: int | None) -> int:
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline:
        for service in local_stack.status(settings()):
            if service.name == name and service.running and service.pid not in (None, other_than):
                return service.pid
        time.sleep(0.3)
    raise AssertionError(f"{name} does not run after {RECOVERY_SECONDS:.0f} s")


@pytest.fixture
def new_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of a project without topics, with a state directory of its own."""
    for folder in ("topics", "schemas", "state"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("TOPICBERG_PROJECT_ROOT", str(tmp_path))
    monkeypatch.setenv("TOPICBERG_STATE_DIR", str(tmp_path / "state"))
    settings.cache_clear()
    yield settings()
    settings.cache_clear()


@pytest.fixture
def own_project(
    request: pytest.FixtureRequest, stack: Endpoints, new_project: Settings
) -> Settings:
    """The same, at the services of the stack."""
    for name in ("runtime.json", "credentials.json"):
        shutil.copy(_shared_stack(request.config).folder / name, new_project.state_dir / name)
    return new_project


@contextmanager
def _state_dir(path: Path) -> Iterator[None]:
    """Settings of another state directory, for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(path))
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.fixture
def make_topic(stack: Endpoints) -> Iterator[Callable[..., Topic]]:
    """``make_topic(**spec fields)``: a topic of three partitions that exists during the test.
    ``topic_config``: Kafka's configuration of the topic."""
    from confluent_kafka.admin import NewTopic
    from kafka_topics import Topic

    from topicberg.topics import TopicSpec

    # A test before this one may have killed Spark, which its supervisor restarts.
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(UnreachableError):
            check_spark(stack.spark_connect)
            break
        time.sleep(0.5)
    made: list[str] = []
    admin = stack.kafka_admin()

    def make(topic_config: dict[str, str] | None = None, **fields: Any) -> Topic:
        name = fields.pop("name", f"orders_{uuid.uuid4().hex[:8]}")
        spec = TopicSpec.model_validate(
            {
                "name": name,
                "pipeline": "shop",
                "schema": {"format": "avro", "file": "stock_trades.avsc"},
                "partitions": 3,
                **fields,
            }
        )
        new = NewTopic(name, num_partitions=3, config=topic_config or {})
        admin.create_topics([new])[name].result(30)
        made.append(name)
        return Topic(stack, spec)

    yield make
    for future in admin.delete_topics(made).values() if made else ():
        future.result(30)
