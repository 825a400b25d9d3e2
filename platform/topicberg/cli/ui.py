"""``topicberg ui``: the asset graph in the browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.output import echo, settings
from topicberg.errors import TopicbergError
from topicberg.extensions import local_stack
from topicberg.files import replace_file

if TYPE_CHECKING:
    from types import FrameType

    from topicberg.settings import Settings

_RUN_DAGSTER = "from topicberg.cli.ui import run_dagster; run_dagster()"


def workspace_file(config: Settings) -> str | None:
    """Return the file that names the code locations, which is written for projects of `dg`, as
    ``dg dev`` does; None: ``dagster dev`` finds pyproject.toml."""
    from topicberg.project import code_location

    if (config.project_root / "workspace.yaml").is_file():
        return "workspace.yaml"
    if (location := code_location(config.project_root)) is None or not location.has_components:
        return None
    module = {
        "module_name": location.target,
        "location_name": location.name,
        "working_directory": str(config.project_root),
    }
    path = config.state_dir / "dagster" / "workspace.yaml"
    replace_file(path, json.dumps({"load_from": [{"python_module": module}]}))
    return str(path)


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="port of the web server")] = 3000,
) -> None:
    """Start the stack and Dagster: web server, sensors and schedules. Ctrl-C ends Dagster."""
    from topicberg.alerts.dagster_processes import end_orphans, note_ui, running_ui
    from topicberg.dagster.home import dagster_home
    from topicberg.documents import GRAPH, address_of

    config = settings()
    if address := running_ui(config):
        raise TopicbergError(f"`topicberg ui` runs at {address}", hint="open it, or end it first")
    if orphans := end_orphans(config):
        echo(f"{orphans} processes are ended that survived a killed `topicberg ui`")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise TopicbergError(f"port {port} is taken", hint="choose another by `--port`")
    if config.deployment == "local":
        local_stack().start(config)
    url = f"http://127.0.0.1:{port}"
    note_ui(config, url)
    os.environ["DAGSTER_HOME"] = str(dagster_home(config))
    # On a busy laptop, Dagster's web server may need longer than the minute that Dagster allows.
    os.environ.setdefault("DAGSTER_GRPC_TIMEOUT_SECONDS", "300")
    # A tick that hangs ends as in production: until then, its sensor begins no other one.
    for kind in ("SENSOR", "SCHEDULE"):
        os.environ.setdefault(f"DAGSTER_{kind}_GRPC_TIMEOUT_SECONDS", "60")
    os.chdir(config.project_root)
    # Dagster's processes communicate through sockets in the folder for temporary files.
    os.umask(0o077)
    echo(f"Dagster: {url}{GRAPH} is the graph of all topics and their tables: begin there")
    if pages := address_of("README.md", url):
        echo(f"Documentation: {pages}; your own topic: `topicberg topics new NAME --from-kafka`")
    if config.deployment == "local":
        echo("The stack keeps running when Dagster ends: stop it with `topicberg down`")
    echo(
        "Dagster warns below about the dagster.yaml in this folder: that is expected, because it "
        f"reads {config.state_dir / 'dagster' / 'dagster.yaml'}, which topicberg writes from it"
    )
    # Dagster stops its processes with SIGINT, which a script's shell ignores for `command &`.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = ["-c", _RUN_DAGSTER, "dev", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workspace", workspace] if (workspace := workspace_file(config)) else []
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606  Dagster takes over


def run_dagster() -> None:
    """Run the command ``dagster`` in this process, and note if a user has ended it: the engine
    reports that ``dagster dev`` ended, with status 0 after its web server or daemon did, only
    otherwise."""
    from runpy import run_module

    from topicberg.alerts.dagster_processes import forget_ui
    from topicberg.endpoints import is_stopped

    def end(_number: int, _frame: FrameType | None) -> None:
        config = settings()
        if forget_ui(config):
            runs = config.deployment == "local" and not is_stopped(config)
            stack = " and the local stack" if runs else ""
            command = "; `topicberg down` ends both" if stack else ""
            echo(f"Dagster ends; runs in progress{stack} go on{command}", err=True)
        raise KeyboardInterrupt

    # Dagster handles SIGTERM as it finds SIGINT handled. A terminal that is closed sends SIGHUP.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    run_module("dagster", run_name="__main__", alter_sys=True)
