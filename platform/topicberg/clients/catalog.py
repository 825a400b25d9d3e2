"""PyIceberg's REST catalog, which checks the responses.

See :mod:`topicberg.clients.answers`.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, RESTError
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from topicberg.clients.answers import unusable

TABLES = "topicberg.tables"
"""Property: the folder of derived tables. ``warehouse`` is the catalog's own property, which for
Glue's REST API is the number of an account.
"""
READ_ONLY = "topicberg.read-only"
"""Property: the namespace of the tables that only Confluent's Tableflow may write.

https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-aws-glue-catalog.html
"""
TIMEOUT_SECONDS = (10.0, 30.0)
"""To connect, and to wait for a response's next byte. PyIceberg would wait for ever; Dagster gives
a sensor a minute.
"""
_TABLE = re.compile(r"/namespaces/[^/]+/tables(/[^/]+)?$")


class CheckedCatalog(RestCatalog):
    """PyIceberg's REST catalog; other responses are errors."""

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        session.request = partial(session.request, timeout=TIMEOUT_SECONDS)  # type: ignore[method-assign]
        session.hooks["response"].append(_catalog_answer)
        return session

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Do nothing: the catalog's server deletes them, and PyIceberg would warn every time."""


def ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """Create a namespace unless it exists; several topics may need a new one at the same time.

    If two create it at once, Iceberg's JDBC catalog answers the second one with an error of its
    database (status 500) instead of "exists already". A principal that may not create any gets 403,
    also for one that exists.

    :raises RESTError: the namespace does not exist, and the catalog did not create it
    """
    if catalog.namespace_exists(namespace):
        return
    try:
        catalog.create_namespace(namespace)
    except NamespaceAlreadyExistsError:
        pass
    except RESTError:
        if not catalog.namespace_exists(namespace):
            raise


def _catalog_answer(response: requests.Response, **_: Any) -> None:
    method = str(response.request.method)
    if not 200 <= response.status_code < 300 or method == "HEAD" or not response.content.strip():
        return
    path = str(response.request.path_url).partition("?")[0]
    operation, found = f"Iceberg catalog {method} {path}", None
    try:
        found = json.loads(response.content)
    except ValueError:
        raise unusable(operation, "JSON") from None
    if not isinstance(found, dict):
        raise unusable(operation, "an object")
    if (match := _TABLE.search(path)) and method != "DELETE":
        field = "metadata" if match[1] or method == "POST" else "identifiers"
        if field not in found:
            raise unusable(operation, f"an object that has {field!r}")
