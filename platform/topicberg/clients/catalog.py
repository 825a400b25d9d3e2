"""PyIceberg's REST catalog, which checks the responses: see :mod:`topicberg.clients.answers`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast
from urllib.parse import unquote

import requests
from pydantic import ValidationError
from pyiceberg.catalog import BOTOCORE_SESSION, Catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.rest.auth import AuthManager, AuthManagerAdapter
from pyiceberg.exceptions import (
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
)
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier, Properties

from topicberg.clients.answers import unusable
from topicberg.clients.file_io import VendedFileIO
from topicberg.errors import LoginError, TableFormatError, TopicbergError
from topicberg.logins import catalog as login
from topicberg.logins.oauth import SKEW_SECONDS, OAuthClient, skew

TABLES = "topicberg.tables"
"""Property: the folder of derived tables. ``warehouse`` is the catalog's own property, which for
Glue's REST API is the number of an account."""
READ_ONLY = "topicberg.read-only"
"""Property: the namespace of the tables that only Confluent's Tableflow may write.

https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-aws-glue-catalog.html
"""
NEWEST_FORMAT_VERSION = 3  # The newest format version of tables that PyIceberg reads.
TIMEOUT_SECONDS = (10.0, 30.0)
"""To connect, and to wait for a response's next byte. PyIceberg would wait for ever; Dagster gives
a sensor a minute."""
_OF_LOGIN = re.compile(r"expired|signature|security token|clock|skew", re.IGNORECASE)
"""What AWS says with status 403 of credentials, not of rights."""
_TABLE = re.compile(r"/namespaces/([^/]+)/tables(?:/([^/]+))?$")
_MISSING_FILE = re.compile(r"NotFoundException: .*?(\S+\.metadata\.json)")
"""What Iceberg's server says, with status 404, of a file that the catalog's pointer names. Of a
table that it does not have, it says NoSuchTableException."""


class MissingMetadataError(TopicbergError):
    """The catalog has a table whose metadata file is missing: the table was not dropped."""


class CatalogRefusalError(LoginError, ForbiddenError):
    """The catalog refuses the login, or what it may do; also what PyIceberg raises for that."""


class OAuth(AuthManager):
    """Tokens of a client of :mod:`topicberg.logins`."""

    def __init__(self, client: OAuthClient) -> None:
        self.client = client

    def auth_header(self) -> str:
        return f"Bearer {self.client.token()}"


class CheckedCatalog(RestCatalog):
    """PyIceberg's REST catalog; other responses are errors, and a refusal names the setting."""

    skew_seconds: float | None = None
    """How much the server's clock is ahead of this machine's; None: not known."""

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        key = self.properties.get(login.OAUTH)
        if client := login.oauth_client(key) if key else None:
            self._auth_manager = OAuth(client)
            session.auth = AuthManagerAdapter(self._auth_manager)
        if session.headers.get(login.DELEGATION) == "none":
            del session.headers[login.DELEGATION]
        send = partial(session.request, timeout=TIMEOUT_SECONDS)
        signed = (
            login.role_errors(role)(send) if (role := self.properties.get(login.ROLE)) else send
        )
        names = self.properties.get(login.SETTINGS, login.PREFIX)
        checked = partial(_request, signed, client, self.uri, names)
        session.request = checked  # type: ignore[method-assign]
        session.hooks["response"] += [_catalog_answer, self._note_clock]
        return session

    def _note_clock(self, response: requests.Response, **_: Any) -> None:
        self.skew_seconds = skew(response)

    def _init_sigv4(self, session: requests.Session) -> None:
        given = self.properties
        if role := given.get(login.ROLE):
            with login.role_errors(role):
                signer = login.role_session(role, given["rest.signing-region"])
            self.properties = {**given, BOTOCORE_SESSION: signer}
        super()._init_sigv4(session)
        self.properties = given

    def _load_file_io(self, properties: Properties = {}, location: str | None = None) -> FileIO:  # noqa: B006
        if login.IS_VENDED not in self.properties:
            return super()._load_file_io(properties, location)
        return VendedFileIO({**self.properties, **properties})

    def load_table(self, identifier: str | Identifier) -> Table:
        """:raises TableFormatError: PyIceberg cannot read a table of its format version or types
        :raises MissingMetadataError: the catalog has the table, and its metadata file is missing
        :raises NoSuchTableError: the catalog does not have the table
        """
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        try:
            return cast(Table, super().load_table(identifier))
        except NoSuchTableError as error:
            if (missing := _MISSING_FILE.match(str(error))) is None:
                raise
            raise MissingMetadataError(
                f"table {name}: its metadata file is missing in the object store: {missing[1]}",
                hint="restore the file, if the bucket has versions; else register the table with "
                "an earlier metadata file of its folder, or drop it: the engine then ingests what "
                "Kafka still has",
            ) from None
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise TableFormatError(
                f"table {name}: its metadata cannot be read: {reason}",
                hint="remove what another writer added to the table, such as a column of a type "
                "that PyIceberg does not have, or drop the table and create it again",
            ) from None

    def _response_to_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> Table:
        table = super()._response_to_table(identifier_tuple, table_response)
        if isinstance(table.io, VendedFileIO):
            table.io.renew = lambda: self.load_table(identifier_tuple).io.properties
        return table

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Do nothing: the catalog's server deletes them, and PyIceberg would warn every time."""


class SplitCatalog(CheckedCatalog):
    """The catalog of the derived tables, and beside it the one to which Tableflow publishes the
    topics' tables, such as an external one of Open Catalog, in which no client may create a table.
    A namespace is in one of them."""

    def __init__(self, name: str, topics: Catalog, properties: dict[str, str]) -> None:
        """:param topics: its property :data:`READ_ONLY` names the topics' namespace"""
        super().__init__(name, **properties)
        self.topics = topics
        self._namespace = topics.properties[READ_ONLY]

    def _of_topics(self, identifier: str | Identifier) -> bool:
        return bool(Catalog.identifier_to_tuple(identifier)[0] == self._namespace)

    def _holder(self, identifier: str | Identifier) -> Catalog:
        """Return the catalog that has a table or a namespace."""
        return self.topics if self._of_topics(identifier) else cast(Catalog, super())

    def load_table(self, identifier: str | Identifier) -> Table:
        return self._holder(identifier).load_table(identifier)

    def table_exists(self, identifier: str | Identifier) -> bool:
        return self._holder(identifier).table_exists(identifier)

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        return self._holder(namespace).list_tables(namespace)

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        return self._holder(namespace).namespace_exists(namespace)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """Return the topics' namespace and those of the derived tables."""
        derived = [n for n in super().list_namespaces(namespace) if not self._of_topics(n)]
        return [*filter(self._of_topics, self.topics.list_namespaces(namespace)), *derived]


def ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """Create a namespace unless it exists; several topics may need a new one at the same time.

    Of two, Iceberg's JDBC catalog answers the second one with status 500, not "exists already". A
    principal that may not create any gets 403, also for one that exists.

    :raises RESTError: the namespace does not exist, and the catalog did not create it
    """
    if catalog.namespace_exists(namespace):
        return
    try:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(namespace)
    except RESTError:
        if not catalog.namespace_exists(namespace):
            raise


def _request(
    send: Callable[..., requests.Response],
    client: OAuthClient | None,
    uri: str,
    prefix: str,
    *args: Any,
    **kwargs: Any,
) -> requests.Response:
    """Send a request; one with a refused token is repeated with another token."""
    response = send(*args, **kwargs)
    if response.status_code in (401, 419) and client is not None:
        used = str(response.request.headers.get("Authorization", ""))
        client.discard(used.removeprefix("Bearer "))
        response = send(*args, **kwargs)
    unknown = response.status_code == 404 and "/v1/config" in str(response.request.path_url)
    if response.status_code in (401, 403, 419) or unknown:
        raise _refusal(response, client, uri, prefix)
    return response


def _refusal(
    response: requests.Response, client: OAuthClient | None, uri: str, prefix: str
) -> CatalogRefusalError:
    method, status = str(response.request.method), response.status_code
    path = str(response.request.path_url).partition("?")[0]
    try:
        error = response.json()["error"]
        reason = str(error.get("message") or error.get("type"))
    except (ValueError, LookupError, TypeError, AttributeError):
        reason = response.reason or "no reason given"
    reason = next(iter(reason.splitlines()), "")[:300]
    name = client.prefix.rstrip("_") if client else None
    if status == 404:
        return CatalogRefusalError(
            f"the catalog does not exist: {uri}, {method} {response.request.path_url}: {reason} "
            "(404)",
            hint=f"check {prefix}_URI, the name of the catalog in {prefix}_NAME"
            if prefix != login.PREFIX
            else f"check {login.PREFIX}_URI, {login.PREFIX}_WAREHOUSE, and the realm in "
            f"{login.PREFIX}_HEADERS if the server wants one",
        )
    if status == 403 and not _OF_LOGIN.search(reason):
        verb = "read" if method in ("GET", "HEAD") else "write"
        return CatalogRefusalError(
            f"the catalog refuses to {verb}: {uri}, {method} {path}: {reason} (403)",
            hint=f"grant the principal of {name or f'{prefix}_TOKEN or _ROLE_ARN'} the right to "
            f"{verb} it; the engine must be allowed to create and commit tables",
        )
    ahead = skew(response)
    if ahead is not None and client is not None and client.skew_seconds is not None:
        apart = ahead - client.skew_seconds
        if abs(apart) > SKEW_SECONDS:
            reason += f"; its clock is {apart:+.0f} s from the OAuth server's"
    if ahead is not None and abs(ahead) > SKEW_SECONDS:
        reason += f"; its clock is {ahead:+.0f} s from this machine's"
    of = f"{name} (scope and audience)" if name else f"{prefix}_AUTH, _TOKEN or AWS's credentials"
    return CatalogRefusalError(
        f"the catalog refuses the login: {uri}, {method} {path}: {reason} ({status})",
        hint="correct the clocks, for instance with NTP"
        if "its clock" in reason
        else f"check {of}, and that the catalog trusts who issued the token",
    )


def _catalog_answer(response: requests.Response, **_: Any) -> None:
    method, path = response.request.method, str(response.request.path_url).partition("?")[0]
    if not 200 <= response.status_code < 300 or method == "HEAD" or not response.content.strip():
        return
    operation = f"Iceberg catalog {method} {path}"
    try:
        answer = json.loads(response.content)
    except ValueError:
        raise unusable(operation, "JSON") from None
    if not isinstance(answer, dict):
        raise unusable(operation, "an object")
    if (match := _TABLE.search(path)) and method != "DELETE":
        field = "metadata" if match[2] or method == "POST" else "identifiers"
        if field not in answer:
            raise unusable(operation, f"an object that has {field!r}")
        if field == "metadata":
            _check_version(match, answer[field])


def _check_version(match: re.Match[str], metadata: Any) -> None:
    """:raises TableFormatError: PyIceberg cannot read tables of this format version"""
    version = metadata.get("format-version") if isinstance(metadata, dict) else None
    if not isinstance(version, int) or version <= NEWEST_FORMAT_VERSION:
        return
    name = ".".join(unquote(part).replace("\x1f", ".") for part in match.groups() if part)
    raise TableFormatError(
        f"table {name}: another writer upgraded it to format version {version} of Iceberg; "
        f"topicberg reads versions up to {NEWEST_FORMAT_VERSION}",
        hint="drop the table and create it again, since no format version can be lowered; for a "
        "topic run `topicberg tableflow disable TOPIC --drop-table`, then `topicberg tableflow "
        "enable TOPIC`",
    )
