"""``topicberg settings``: every setting by its concern, its value, and where it is from."""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topicberg.cli.output import AsJson, cell, echo, echo_json, print_table
from topicberg.cli.variables import PREFIX, in_file, models, variables_of
from topicberg.errors import TopicbergError
from topicberg.security.redaction import redact

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings
    from rich.text import Text

    from topicberg.settings.environment import Concern

HIDDEN = "(hidden)"
_PASSWORD = re.compile(r"(?<=://)[^/@]*@")
_MARKUP = re.compile(r":[a-z]+:`~?\.?(?:\w+\.)*(\w+)`|`{1,2}")
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
        for setting in members:
            value = "" if setting.value is None else setting.value
            rows.append(
                (cell(setting.variable), cell(value), setting.origin, cell(setting.description))
            )
    print_table(("setting", "value", "from", "what it is"), rows)


def _deployed() -> dict[str, str]:
    """Return the variables that ``topicberg deploy`` noted for its deployment."""
    from topicberg.settings import Settings
    from topicberg.settings.deployed import DEPLOYED_EMR, read_deployment

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
    """Return every setting, by its concern and its variable.

    :param file: variables of the file of settings, which the environment precedes
    :param deployed: what ``topicberg deploy`` noted, which both precede
    """
    sources = {"environment": environment, ".env": file, "topicberg deploy": deployed}
    from topicberg.settings.environment import Concern

    by_variable: dict[str, Setting] = {}
    for model in models():
        described = _described(model)
        for name, field in model.model_fields.items():
            variables = variables_of(model, name)
            concern = _concern(model, name, variables[0])
            setting = _setting(concern, variables, field, described.get(name, ""), sources)
            known = by_variable.get(variables[0])
            if variables[0].startswith(PREFIX) and (known is None or not known.description):
                by_variable[variables[0]] = setting
    order = list(Concern)
    return sorted(
        by_variable.values(),
        key=lambda setting: (order.index(Concern(setting.concern)), setting.variable),
    )


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
    variables: list[str],
    field: FieldInfo,
    described: str,
    sources: Mapping[str, Mapping[str, str]],
) -> Setting:
    from topicberg.settings.environment import NESTED

    is_secret = "Secret" in str(field.annotation) or not field.repr
    text = " ".join(_MARKUP.sub(r"\1", field.description or described).split())
    for origin, given in sources.items():
        for variable in variables:
            inner = sorted(name for name in given if name.startswith(f"{variable}{NESTED}"))
            if value := given.get(variable) or ", ".join(inner):
                shown = HIDDEN if is_secret else redact(_PASSWORD.sub(f"{HIDDEN}@", value))
                return Setting(concern, variables[0], shown, origin, text)
    default = None if field.is_required() or field.default_factory else field.get_default()
    return Setting(
        concern, variables[0], None if default is None else _shown(default), "default", text
    )


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default in ((), {}, []) else str(default)


@cache
def _described(model: type[BaseSettings]) -> dict[str, str]:
    """Return field → the text under it, of a model and of those that it is derived from."""
    descriptions: dict[str, str] = {}
    for base in model.__mro__:
        if not base.__module__.startswith(("pydantic", "builtins")):
            for name, text in _docstrings(base):
                descriptions.setdefault(name, text)
    return descriptions


def _docstrings(model: type) -> Iterator[tuple[str, str]]:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(parsed, ast.ClassDef)  # noqa: S101  the source of a class
    for node, after in zip(parsed.body, parsed.body[1:], strict=False):
        match node, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, text
