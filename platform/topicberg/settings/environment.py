"""How settings are read from the environment, and how invalid ones are reported."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from topicberg.errors import TopicbergError
from topicberg.project import env_file
from topicberg.security.models import HoldsSecrets

Model = TypeVar("Model", bound=BaseSettings)
_MARKUP = re.compile(r":[a-z]+:`~?\.?(?:\w+\.)*(\w+)`|`{1,2}")
NESTED = "__"
"""Between the name of a group and that of a field: ``TOPICBERG_ALERT_SMTP__HOST``. The group is one
setting, which may be stated in JSON as well."""


class Concern(StrEnum):
    """What settings are about; ``topicberg settings`` lists them in this order."""

    DEPLOYMENT = "the project and its deployment"
    ENGINE = "the Tableflow engine"
    KAFKA = "Kafka"
    REGISTRY = "the schema registry"
    CATALOGS = "Iceberg catalogs"
    CONFLUENT = "Confluent Cloud"
    AWS = "AWS"
    COMPUTE = "Spark and EMR Serverless"
    SNOWFLAKE = "Snowflake"
    ALERTS = "alerts"
    LINEAGE = "lineage"
    DAGSTER = "Dagster"
    DEPLOY = "topicberg deploy"
    LOCAL = "the local stack"


class EnvironmentSettings(BaseSettings):
    """Settings of the environment and of the file of settings, which is looked up each time."""

    model_config = SettingsConfigDict(
        env_prefix="TOPICBERG_", env_nested_delimiter=NESTED, extra="ignore", env_ignore_empty=True
    )

    concern: ClassVar[Concern] = Concern.DEPLOY
    """Under which its settings are listed."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"_env_file": env_file(), **given})


def _from_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"Input should be a JSON object: {error}") from None


class Group(HoldsSecrets):
    """Settings that go together: one setting, see :data:`NESTED`."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, frozen=True)


FromJson = (NoDecode, BeforeValidator(_from_json))
"""Annotations of a setting that is JSON. Decoded by pydantic-settings, a malformed one is an error
without the name of its variable."""


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return field → what it is: the text under it, in the model or one that it is derived from."""
    bases = [b for b in model.__mro__ if not b.__module__.startswith(("pydantic", "builtins"))]
    texts = {name: text for base in reversed(bases) for name, text in _docstrings(base)}
    texts |= {name: own for name, f in model.model_fields.items() if (own := f.description)}
    return {name: " ".join(_MARKUP.sub(r"\1", text).split()) for name, text in texts.items()}


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


def problems(
    model: type[BaseSettings], error: ValidationError, show_values: bool = False
) -> list[str]:
    """Return one line for each invalid or missing setting: its variable and what it should be;
    ``show_values``: with the value that was found, except for secrets."""
    lines, follows = [], "default_factory_not_called"  # an error because of another one
    for each in (e for e in error.errors(include_url=False) if e["type"] != follows):
        message = each["msg"].removeprefix("Value error, ")
        if each["loc"]:  # else it is of a validator, which names the variables
            name, *inner = map(str, each["loc"])
            field = model.model_fields.get(name)
            # The alias of a field is the variable itself.
            prefix = "" if name.isupper() else model.model_config.get("env_prefix", "")
            variable = NESTED.join((f"{prefix}{name.upper()}", *map(str.upper, inner)))
            if show_values and field and field.repr and "SecretStr" not in str(field.annotation):
                message += f" (found {each['input']!r})"
            if text := descriptions(model).get(name, ""):
                message += f". {text.rstrip('.')}"
            is_missing = each["type"] == "missing"
            message = f"{variable}: missing" if is_missing else f"{variable}: {message}"
        lines.append(message)
    return lines


def read_settings(model: type[Model], subject: str, hint: str) -> Model:
    """Return settings as the environment and the file of settings state them.

    :param subject: what is wrong if they are invalid, for the message
    :raises TopicbergError: names every setting that is missing or invalid; shows no value
    """
    try:
        return model()
    except ValidationError as error:
        raise invalid(subject, problems(model, error), hint) from None


def invalid(subject: str, lines: list[str], hint: str) -> TopicbergError:
    """Return the error of invalid settings: one line if one of them is invalid."""
    text = f" {lines[0]}" if len(lines) == 1 else "\n  ".join(["", *lines])
    return TopicbergError(f"{subject}:{text}", hint=hint)


def as_text(value: Any) -> str:
    """Return a value as a variable states it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in value.model_fields_set}
    return str(value) if not isinstance(value, dict) else json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """Return what JSON has no type for: the fields of a group, and secrets."""
    if isinstance(value, BaseModel):
        return {name: one for name, one in value if one is not None}
    return as_text(value)
