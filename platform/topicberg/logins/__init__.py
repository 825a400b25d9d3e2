"""How to log in to a catalog, to Kafka and to a schema registry: one model each.

A model holds the settings, reports at once what is wrong with them, and renders them for every
client: PyIceberg, Spark and DuckDB; librdkafka and Spark's Kafka source; the registry's client.
Nothing else knows the clients' names of a setting. Secrets are redacted from every message of the
process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from topicberg.errors import TopicbergError
from topicberg.settings import problems

Model = TypeVar("Model", bound=BaseSettings)


def from_environment(model: type[Model], where: str, docs: str) -> Model:
    """Return a login as the environment and ``.env`` state it.

    :param where: the service, for messages
    :param docs: the page that explains the settings
    :raises TopicbergError: names every setting that is missing or invalid; shows no value
    """
    try:
        return model()
    except ValidationError as error:
        wrong = problems(model, error)
    raise TopicbergError(
        f"the settings of the login to {where} are wrong: " + "; ".join(wrong),
        hint=f"correct them in the environment or in .env; {docs} has an example of each kind",
    )


def check_files(prefix: str, files: dict[str, Path | None]) -> None:
    """Refuse a login whose files do not exist.

    :param files: name → value of the settings
    :raises ValueError: names the first one
    """
    for name, path in files.items():
        if path and not path.is_file():
            raise ValueError(f"{prefix}_{name.upper()}: there is no file {path}")


def missing(prefix: str, kind: str, fields: dict[str, object]) -> None:
    """Refuse a login that lacks settings.

    :param kind: the value of the setting ``<prefix>_AUTH``
    :param fields: name → value of the required settings
    :raises ValueError: names those without a value
    """
    absent = [f"{prefix}_{name.upper()}" for name, value in fields.items() if not value]
    if absent:
        raise ValueError(f"{prefix}_AUTH is {kind}, which requires {', '.join(absent)}")
