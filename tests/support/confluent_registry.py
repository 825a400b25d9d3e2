"""A schema registry as Confluent's since 8.0: contexts with ids of their own, GUIDs, references.

It refuses what it does not know. Compatibility is not checked: every subject's level is NONE.
Source: confluentinc/schema-registry: ``SchemasResource``, ``InMemoryCache``, ``QualifiedSubject``.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from topicberg.endpoints import Endpoints
from topicberg.logins.registry import RegistryLogin

DEFAULT = "."
Json = Any


class RefusedError(Exception):
    """An error of the registry: its status and code."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def split(subject: str) -> tuple[str, str]:
    """The context and the name of a subject."""
    if subject.startswith(":."):
        context, _, name = subject[1:].partition(":")
        return context, name
    return DEFAULT, subject


def full(context: str, name: str) -> str:
    return name if context == DEFAULT else f":{context}:{name}"


@dataclass
class Registered:
    text: str
    kind: str
    references: list[dict[str, Json]]

    @property
    def guid(self) -> str:
        """The same in each context, as it depends on nothing else."""
        content = json.dumps([self.text, self.kind, self.references])
        return str(uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16]))

    def json(self) -> dict[str, Json]:
        more = {"references": self.references} if self.references else {}
        return {"schema": self.text, "schemaType": self.kind, "guid": self.guid, **more}


@dataclass
class Registry:
    """What a registry holds.

    ``next_ids``: of each context, from 1. ``has_guids``: false: as registries before 8.0.
    """

    has_guids: bool = True
    next_ids: dict[str, int] = field(default_factory=dict)
    ids: dict[tuple[str, int], Registered] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """Full name → the ids of its versions."""
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: list[str], query: dict[str, str], body: Json) -> Json:
        match method, path:
            case "GET", ["subjects"]:
                return sorted(self.subjects)
            case "GET", ["contexts"]:
                return sorted({DEFAULT, *(split(one)[0] for one in self.subjects)})
            case "GET", ["config"]:
                return {"compatibilityLevel": "NONE"}
            case "GET" | "PUT", ["config", _]:
                _only(query, "defaultToGlobal")
                return {"compatibilityLevel": "NONE"} if method == "GET" else body
            case "GET", ["subjects", subject, "versions"]:
                return list(range(1, len(self._versions(subject)) + 1))
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case "POST", ["subjects", subject, "versions"]:
                _only(query, "normalize")
                return self._register(subject, body)
            case "POST", ["subjects", subject]:
                _only(query, "normalize", "deleted")
                return self._look_up(subject, _schema(body))
            case "GET", ["schemas", "ids", number]:
                _only(query, "subject", "format")
                return self._by_id(int(number), query.get("subject", ""))
            case "GET", ["schemas", "guids", guid, *rest] if self.has_guids:
                return self._by_guid(guid, rest)
        raise RefusedError(404, 404, "HTTP 404 Not Found")

    def _versions(self, subject: str) -> list[int]:
        if subject not in self.subjects:
            raise RefusedError(404, 40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def _version(self, subject: str, version: str) -> Json:
        versions = self._versions(subject)
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            raise RefusedError(404, 40402, f"Version {version} not found.")
        return self._found(subject, number)

    def _found(self, subject: str, number: int) -> Json:
        schema_id = self.subjects[subject][number - 1]
        found = self.ids[split(subject)[0], schema_id].json()
        return self._known({"subject": subject, "version": number, "id": schema_id, **found})

    def _known(self, found: dict[str, Json]) -> dict[str, Json]:
        return found if self.has_guids else {k: v for k, v in found.items() if k != "guid"}

    def _register(self, subject: str, body: Json) -> Json:
        schema = _schema(body)
        context, name = split(subject)
        if not name:
            raise RefusedError(422, 42208, f"The specified subject '{subject}' is not valid.")
        for one in schema.references:
            of, plain = split(one["subject"])
            there = full(context if of == DEFAULT else of, plain)
            if not 1 <= one["version"] <= len(self.subjects.get(there, [])):
                raise RefusedError(422, 42201, f"No schema reference found for {there}")
        held = {number: one for (of, number), one in self.ids.items() if of == context}
        number = next((number for number, one in held.items() if one == schema), 0)
        if not number:
            number = self.next_ids.get(context, 1)
            self.next_ids[context] = number + 1
            self.ids[context, number] = schema
        versions = self.subjects.setdefault(full(context, name), [])
        if number not in versions:
            versions.append(number)
        return self._look_up(full(context, name), schema)

    def _look_up(self, subject: str, schema: Registered) -> Json:
        context = split(subject)[0]
        for version, number in enumerate(self._versions(subject), 1):
            if self.ids[context, number] == schema:
                return self._found(subject, version)
        raise RefusedError(404, 40403, "Schema not found")

    def _by_id(self, number: int, subject: str) -> Json:
        context, name = split(subject)
        found = self.ids.get((context, number))
        is_there = not name or number in self.subjects.get(subject, [])
        if found is None or not is_there:
            raise RefusedError(404, 40403, f"Schema {number} not found")
        return self._known(found.json())

    def _by_guid(self, guid: str, rest: list[str]) -> Json:
        found = sorted((key, one) for key, one in self.ids.items() if one.guid == guid)
        if rest == ["ids"]:
            return [{"context": context, "id": number} for (context, number), _ in found]
        if rest or not found:
            raise RefusedError(404, 40403, f"Schema {guid} not found")
        return found[0][1].json()


def _schema(body: Json) -> Registered:
    return Registered(body["schema"], body.get("schemaType", "AVRO"), body.get("references") or [])


def _only(query: dict[str, str], *names: str) -> None:
    if unknown := query.keys() - set(names):
        raise RefusedError(400, 400, f"unknown parameters {sorted(unknown)}")


@contextmanager
def running(registry: Registry) -> Iterator[str]:
    """Serve a registry; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            path = [unquote(part) for part in url.path.strip("/").split("/")]
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            with registry.lock:
                registry.requests.append(f"{self.command} {unquote(self.path)}")
                try:
                    status, found = (
                        200,
                        registry.answer(
                            self.command, path, query, json.loads(text) if text else None
                        ),
                    )
                except RefusedError as error:
                    status, found = error.status, {"error_code": error.code, "message": str(error)}
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def with_registry(endpoints: Endpoints, url: str) -> Endpoints:
    """The endpoints, with another registry, which needs no login."""
    login = RegistryLogin(auth="none")
    return endpoints.model_copy(update={"schema_registry": url, "registry_login": login})
