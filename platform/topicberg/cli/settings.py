"""``topicberg settings``: every setting by its concern, its value, and where it is from.

Variables that look like settings and are not get a warning: a misspelled one would be ignored.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from topicberg.cli.output import AsJson, cell, echo, echo_json, print_table
from topicberg.errors import TopicbergError
from topicberg.extensions import extensions
from topicberg.security.redaction import redact

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings
    from rich.text import Text

    from topicberg.settings.environment import Concern

HIDDEN = "(hidden)"
_PASSWORD = re.compile(r"(?<=://)[^/@]*@")
_BY_BEGIN = {
    "CONFLUENT": "CONFLUENT",
    "KAFKA": "KAFKA",
    "SCHEMA_REGISTRY": "REGISTRY",
    "ICEBERG_REST": "CATALOGS",
    "CATALOG": "CATALOGS",
    "SNOWFLAKE": "SNOWFLAKE",
    "SPARK": "COMPUTE",
    "S3": "AWS",
}
"""Beginning of a variable → its concern, for the addresses of several vendors in one model."""


@dataclass(frozen=True)
class Setting:
    """A variable, what it is set to, and where; the value of a secret is hidden."""

    concern: str
    variable: str
    value: str | None
    origin: str
    description: str


def settings(
    name: Annotated[
        str | None, typer.Argument(help="Only variables with this text.", show_default=False)
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only those that are set.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every setting, by concern, with its value, where that is from, and what it is for."""
    shown = [
        setting
        for setting in every_setting(os.environ, in_file(), _deployed())
        if (name or "").upper() in setting.variable
        and not (changed and setting.origin == "default")
    ]
    if as_json:
        echo_json([asdict(setting) for setting in shown])
        return
    if not shown:
        echo("no such setting" if name else "every setting has its default")
        return
    rows: list[Sequence[str | Text]] = []
    for concern, members in groupby(shown, key=lambda setting: setting.concern):
        rows += [*([()] if rows else []), (f"[bold]{concern}[/bold]",)]
        rows += [
            (cell(s.variable), cell(s.value or ""), s.origin, cell(s.description)) for s in members
        ]
    print_table(("setting", "value", "from", "what it is"), rows)


def _deployed() -> dict[str, str]:
    """Return the variables that ``topicberg deploy`` noted for its deployment."""
    from topicberg.settings import DEPLOYED_EMR, Settings, read_deployment

    try:
        stated = Settings()
    except TopicbergError:  # another command reports what is wrong
        return {}
    values = read_deployment(stated)[0] if stated.deployment == "cloud" else {}
    known = {"emr_jobs" if name == DEPLOYED_EMR else name: values[name] for name in values}
    return {f"{PREFIX}{name.upper()}": str(value) for name, value in known.items()}


def every_setting(
    environment: Mapping[str, str], file: Mapping[str, str], deployed: Mapping[str, str]
) -> list[Setting]:
    """Return every setting, by its concern and its variable; the environment precedes the file of
    settings, and both precede what ``topicberg deploy`` noted."""
    from topicberg.settings.environment import Concern, descriptions

    sources = {"environment": environment, ".env": file, "topicberg deploy": deployed}
    by_variable: dict[str, Setting] = {}
    for model in models():
        texts = descriptions(model)
        for name, field in model.model_fields.items():
            variable, *others = variables_of(model, name)
            known = by_variable.get(variable)
            if variable.startswith(PREFIX) and (known is None or not known.description):
                by_variable[variable] = _setting(
                    concern=_concern(model, name, variable),
                    variable=variable,
                    others=others,
                    field=field,
                    text=texts.get(name, ""),
                    sources=sources,
                )
    order = [*Concern]
    return sorted(by_variable.values(), key=lambda s: (order.index(Concern(s.concern)), s.variable))


def _concern(model: type[BaseSettings], name: str, variable: str) -> Concern:
    """Return what a field is about: the concern of the model that has it, or that its name says."""
    from topicberg.settings.environment import Concern

    stated = next(base for base in model.__mro__ if name in inspect.get_annotations(base))
    for candidate in (stated, model):
        if "concern" in vars(candidate):
            return Concern(vars(candidate)["concern"])
    own = variable.removeprefix(PREFIX)
    begins = (concern for begin, concern in _BY_BEGIN.items() if f"{own}_".startswith(f"{begin}_"))
    return Concern[next(begins, "DEPLOY")]


def _setting(
    concern: str,
    variable: str,
    others: Sequence[str],
    field: FieldInfo,
    text: str,
    sources: Mapping[str, Mapping[str, str]],
) -> Setting:
    """:param others: further variables that set the field"""
    from topicberg.settings.environment import NESTED

    is_secret = "Secret" in str(field.annotation) or not field.repr
    for origin, given in sources.items():
        for stated in (variable, *others):
            inner = sorted(name for name in given if name.startswith(f"{stated}{NESTED}"))
            if value := given.get(stated) or ", ".join(inner):
                shown = HIDDEN if is_secret else redact(_PASSWORD.sub(f"{HIDDEN}@", value))
                return Setting(concern, variable, shown, origin, text)
    default = None if field.is_required() or field.default_factory else field.get_default()
    if default is not None:
        default = "" if default in ((), {}, []) else str(default)
        default = default.lower() if isinstance(field.default, bool) else default
    return Setting(concern, variable, default, "default", text)


PREFIX = "TOPICBERG_"
_MODULES = (
    "settings logins.kafka logins.registry logins.catalog endpoints.cloud alerts.settings "
    "clients.lineage"
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

    for name in _MODULES.split():
        import_module(f"topicberg.{name}")
    list(extensions("topicberg.settings"))  # imports them
    return _subclasses(BaseSettings)


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
        name.removeprefix(PREFIX)
        for name in {*map(str.upper, given)} - common
        if name.startswith(PREFIX) and not name.startswith(_INTERNAL)
        if not _OF_KUBERNETES.fullmatch(name)
    }
    # The prefix would make short names alike.
    names = {name.removeprefix(PREFIX) for name in (known() if suspects else ())}
    lines = []
    for name in sorted(suspects - names):
        words = {*name.split("_")}
        wider = [other for other in names if words <= {*other.split("_")}]  # as those of a group
        close = get_close_matches(name, wider, 1) or get_close_matches(name, names, 1, cutoff=0.85)
        meant = f"did you mean {PREFIX}{close[0]}?" if close else "it has no effect"
        lines.append(f"{PREFIX}{name} is not a setting of topicberg; {meant}")
    return lines


def without_effect(names: set[str]) -> list[str]:
    """Return one line for each of AWS's variables that is in the file of settings only: AWS's
    clients do not read that; ``names``: those in the file."""
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


def _subclasses(model: type[BaseSettings]) -> list[type[BaseSettings]]:
    return [one for kind in model.__subclasses__() for one in (kind, *_subclasses(kind))]
