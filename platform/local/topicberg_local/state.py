"""The state directory: its files, whether it can be used, and whether a file is damaged.

``credentials.json``  secrets, generated at the first start
``ports.json``        the ports of the last start; written before the services start
``runtime.json``      endpoints (:mod:`topicberg.endpoints`); exists from when all services have
                      answered until ``down``
``stopped``           exists from ``down`` until ``up``
and a folder for each service. Files with secrets have mode 0600, the directory itself 0700.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import psutil
from pydantic import SecretStr, TypeAdapter, ValidationError

from topicberg.endpoints import Endpoints, local_endpoints, runtime_file, stopped, stopped_file
from topicberg.errors import StackError, StackNotRunningError
from topicberg.settings import Settings
from topicberg_local import ports
from topicberg_local.service import Context, Credentials, write_file
from topicberg_local.supervisor import stack_processes

logger = logging.getLogger(__name__)

T = TypeVar("T")

NEEDED_DISK = 2 * 2**30
NEEDED_MEMORY = 3 * 2**30
UNUSABLE = frozenset(',;:"\\\n\t')
"""Separators in class paths, Kafka's list of folders, and JDBC URLs, which cannot be escaped."""
_RESET = "restore it, or run `topicberg reset` to start again, which deletes the local tables"
_NAMES = frozenset(ports.NAMES)
_PORTS = TypeAdapter(dict[str, int])


def lock_file(config: Settings) -> Path:
    return config.state_dir / "up.lock"


def note_stopped(config: Settings) -> bool:
    """Write that a user stops the stack; return False if that was written before."""
    path = stopped_file(config)
    is_new = not path.exists()
    try:
        path.touch()
    except OSError as error:  # stopping must work nevertheless
        logger.warning("runs may start the stack again: %s", error)
    return is_new


def refuse_stopped(config: Settings) -> None:
    """Check that a run may start the stack.

    :raises StackNotRunningError: a user has stopped it, or the project is at another path now: a
        run that continues there must not create its folder again
    """
    if stopped_file(config).exists():
        raise stopped()
    root = config.project_root
    if not root.is_dir() or all(config.state_dir.is_relative_to(path) for path in root.iterdir()):
        raise StackNotRunningError(
            f"the project {root} does not exist any more, so its stack is not started",
            hint="if you have moved the folder, start `topicberg ui` again there",
        )


def prepare_dir(config: Settings) -> None:
    """Create the state directory, or check it; raises StackError: it cannot be used."""
    state_dir = config.state_dir
    refuse_foreign(config)
    if bad := UNUSABLE.intersection(str(state_dir)):
        raise StackError(
            f"the services cannot use a path with {sorted(bad)[0]!r}: {state_dir}",
            hint="set TOPICBERG_STATE_DIR to another directory",
        )
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        state_dir.chmod(0o700)
        with TemporaryFile(dir=state_dir) as probe:  # several processes may be here at once
            probe.write(b"x" * 4096)
    except OSError as error:
        raise StackError(
            f"{state_dir} cannot be written: {error.strerror}",
            hint="free some space, fix the permissions, or set TOPICBERG_STATE_DIR to another one",
        ) from None


def check_resources(state_dir: Path) -> None:
    """:raises StackError: there is too little disk space or memory for a start"""
    disk, memory = shutil.disk_usage(state_dir).free, psutil.virtual_memory().available
    if disk < NEEDED_DISK:
        needed = f"the stack needs {NEEDED_DISK / 2**30:.0f}"
        raise StackError(
            f"{state_dir} has {disk / 2**30:.1f} GB free, {needed}",
            hint="free some space, or set TOPICBERG_STATE_DIR to another disk",
        )
    if memory < NEEDED_MEMORY:
        needed = f"the stack needs {NEEDED_MEMORY / 2**30:.0f}"
        raise StackError(
            f"{memory / 2**30:.1f} GB of memory are available, {needed}",
            hint="close other programs, or run `topicberg down` in other checkouts",
        )


def delete(config: Settings) -> None:
    """Delete the state directory; raises StackError: it is not topicberg's, or it cannot be."""
    state_dir = config.state_dir.resolve()
    refuse_foreign(config)
    is_own = (state_dir / "credentials.json").exists() or load_ports(config).keys() >= _NAMES
    if not is_own and any(state_dir.iterdir()):
        raise StackError(
            f"{state_dir} is not topicberg's state (no credentials.json); it is not deleted",
            hint="check TOPICBERG_STATE_DIR, or delete the directory yourself",
        )
    try:
        shutil.rmtree(state_dir)
    except OSError as error:
        raise StackError(f"{error.filename} cannot be deleted: {error.strerror}") from None


def refuse_foreign(config: Settings) -> None:
    state_dir = config.state_dir.resolve()
    for place in (Path.home().resolve(), config.project_root.resolve()):
        if place.is_relative_to(state_dir):
            raise StackError(
                f"{state_dir} cannot be the state directory: it holds more than topicberg's state",
                hint="set TOPICBERG_STATE_DIR to a directory of its own",
            )


def load_context(config: Settings) -> Context | None:
    """Return the context of the last start; None: there was none of this version, or its secrets
    are deleted and nothing runs.

    :raises StackError: a file cannot be read or is damaged, or the secrets of a stack that runs are
        deleted
    """
    last, path = load_ports(config), config.state_dir / "credentials.json"
    if not last.keys() >= _NAMES:
        return None
    if (secrets := _read(path, Credentials.model_validate_json)) is not None:
        return Context(config, last, secrets)
    if stack_processes(config.state_dir):
        hint = "run `topicberg down`, then `topicberg up`, which writes it again; no table is lost"
        raise damaged(path, "missing while the stack runs", hint)
    return None


def load_ports(config: Settings) -> dict[str, int]:
    return _read(config.state_dir / "ports.json", _PORTS.validate_json) or {}


def save_ports(context: Context) -> None:
    write_file(context.config.state_dir / "ports.json", json.dumps(dict(context.ports)))


def credentials(config: Settings) -> Credentials:
    """Return the secrets for a start, generated and written when they are first needed."""
    path = config.state_dir / "credentials.json"
    stored = _read(path, Credentials.model_validate_json) or Credentials.generate()
    write_file(path, stored.model_dump_json())  # it has those of new services, too
    return stored


def _read(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """Return the content of a file; None: it does not exist; raises StackError."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise damaged(path, type(error).__name__) from None
    except OSError as error:
        raise unreadable(path, error.strerror) from None


def save_endpoints(config: Settings, services: dict[str, str | None], endpoints: Endpoints) -> None:
    """Write ``runtime.json``. ``services``: URL by name."""
    document = {
        "services": {name: {"url": url} for name, url in services.items()},
        "endpoints": {key: _revealed(value) for key, value in endpoints.model_dump().items()},
    }
    write_file(runtime_file(config), json.dumps(document, indent=1))


def forget_endpoints(config: Settings) -> bool:
    """Remove ``runtime.json``; return False if there was none."""
    path = runtime_file(config)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def has_endpoints(config: Settings) -> bool:
    """Return whether every service has answered since the last start."""
    try:
        local_endpoints(config)
    except StackNotRunningError:
        return False
    return True


def damaged(path: Path, reason: str, hint: str = _RESET) -> StackError:
    """Return the error for a file that cannot be parsed; nothing is deleted automatically."""
    return StackError(f"{path} is damaged ({reason})", hint=hint)


def unreadable(path: Path, reason: object) -> StackError:
    """Return the error for a file that may be intact: the system does not let this process read."""
    return StackError(
        f"{path} cannot be read: {reason}",
        hint="fix its permissions, or the cause that the message names, and try again: no table is "
        "lost",
    )


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _revealed(item) for key, item in value.items()}
    return value
