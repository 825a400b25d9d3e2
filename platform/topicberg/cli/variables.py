"""Variables that look like settings and are not: a misspelled one would be ignored."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, get_args

from topicberg.extensions import extensions

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

PREFIX = "TOPICBERG_"
_MODULES = (
    "settings",
    "logins.kafka",
    "logins.registry",
    "logins.catalog",
    "endpoints.addresses",
    "endpoints.cloud",
    "alerts.settings",
    "clients.lineage",
)
"""Modules of the library with models of settings."""
_OTHERS = frozenset(
    {"TOPICBERG_ENV_FILE", "TOPICBERG_CONFLUENT_ADMIN_TOKEN"}
    | {"TOPICBERG_WAREHOUSE_URL", "TOPICBERG_DERIVED_WAREHOUSE_URL"}
)
"""Names that no model reads: what is read before all models, and what `topicberg env` prints."""
_INTERNAL = ("TOPICBERG_TEST_", "TOPICBERG_EMULATOR_", "TOPICBERG_PROXY_", "TOPICBERG_STACK")
_OF_DEPLOY = ("AWS_PROFILE", "AWS_ENDPOINT_URL")
"""AWS's variables that ``topicberg deploy`` reads in the file of settings."""
_OF_KUBERNETES = re.compile(r"TOPICBERG(_\w+)?_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)")
"""What it sets in a pod for each service whose name begins like ours."""


def models() -> list[type[BaseSettings]]:
    """Return the models of settings."""
    from pydantic_settings import BaseSettings

    for name in _MODULES:
        import_module(f"topicberg.{name}")
    list(extensions("topicberg.settings"))  # imports them
    return list(_subclasses(BaseSettings))


def variables_of(model: type[BaseSettings], name: str) -> list[str]:
    """Return the variables that set a field, the one that is documented first."""
    alias = model.model_fields[name].validation_alias
    own = f"{model.model_config.get('env_prefix') or ''}{name.upper()}"
    return [alias.upper(), own] if isinstance(alias, str) else [own]


def known() -> set[str]:
    """Return the variable of every setting, and of every field of a group."""
    from topicberg.settings.environment import NESTED, Group

    names = {*_OTHERS}
    for model in models():
        for name, field in model.model_fields.items():
            names.update(variables := variables_of(model, name))
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, Group):
                    names |= {f"{variables[0]}{NESTED}{key.upper()}" for key in kind.model_fields}
    return {name for name in names if name.startswith(PREFIX)}


def problems(given: Iterable[str]) -> list[str]:
    """Return one line for each given variable that is no setting."""
    from topicberg.settings import Settings

    common = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | _OTHERS
    suspects = {
        name
        for name in {*map(str.upper, given)} - common
        if name.startswith(PREFIX)
        and not name.startswith(_INTERNAL)
        and not _OF_KUBERNETES.fullmatch(name)
    }
    if not suspects:
        return []
    names = {name.removeprefix(PREFIX) for name in known()}  # it would make short names alike
    lines = []
    for name in sorted({name.removeprefix(PREFIX) for name in suspects} - names):
        words = {*name.split("_")}
        wider = [other for other in names if words <= {*other.split("_")}]  # as those of a group
        close = get_close_matches(name, wider, 1) or get_close_matches(name, names, 1, cutoff=0.85)
        meant = f"did you mean {PREFIX}{close[0]}?" if close else "it has no effect"
        lines.append(f"{PREFIX}{name} is not a setting of topicberg; {meant}")
    return lines


def without_effect(names: set[str]) -> list[str]:
    """Return one line for each of AWS's variables that is in the file of settings only: AWS's
    clients do not read that.

    :param names: those in the file
    """
    from topicberg.project import env_file

    return [
        f"{name} in {env_file()} has no effect"
        f"{', except on `topicberg deploy`' if name in _OF_DEPLOY else ''}; "
        "set it in the environment"
        for name in sorted(names - os.environ.keys())
        if name.startswith("AWS_")
    ]


def in_file() -> dict[str, str]:
    """Return the variables in the file of settings, and their values."""
    from dotenv import dotenv_values

    from topicberg.project import env_file

    path = env_file()
    values = dotenv_values(path) if path is not None and path.is_file() else {}
    return {name: value or "" for name, value in values.items()}


def _subclasses(model: type[BaseSettings]) -> Iterator[type[BaseSettings]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
