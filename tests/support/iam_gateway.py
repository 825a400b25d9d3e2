"""AWS with IAM enforced: a proxy before the emulators, which denies a role all that its policies do
not allow, and records what they do.

Every client sends its requests here: boto3, PyArrow's reader of S3, PyIceberg, dagster-aws. Roles
are limited; the account's root may do everything. Beside the emulators' services it has Glue's
Iceberg REST catalog, over their Glue, and job runs of EMR Serverless.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from aws_requests import NO_POLICY_DENIES, Watch
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from topicberg_local.emulators.aws import emr_serverless
from topicberg_local.emulators.aws.auth import AUTHORIZATION, principal_of
from topicberg_local.emulators.aws.simulator import policies_of
from topicberg_local.emulators.iam import Request

JOB_RUNS = ("StartJobRun", "GetJobRun", "GetDashboardForJobRun")
_BUCKET = {
    **{"encryption": "EncryptionConfiguration", "publicAccessBlock": "BucketPublicAccessBlock"},
    **{"policy": "BucketPolicy", "versioning": "BucketVersioning", "tagging": "BucketTagging"},
    "lifecycle": "LifecycleConfiguration",
}
_LISTS = {
    **{"location": "GetBucketLocation", "uploads": "ListBucketMultipartUploads"},
    "versions": "ListBucketVersions",
}
_REST = {
    ("config", "GET"): ("GetCatalog", ("catalog",)),
    ("namespace", "GET"): ("GetDatabase", ("catalog", "database/{0}")),
    ("namespace", "HEAD"): ("GetDatabase", ("catalog", "database/{0}")),
    ("table", "GET"): ("GetTable", ("catalog", "database/{0}", "table/{0}/{1}")),
    ("table", "HEAD"): ("GetTable", ("catalog", "database/{0}", "table/{0}/{1}")),
}
"""https://docs.aws.amazon.com/glue/latest/dg/iceberg-rest-apis.html"""
_PATH = re.compile(r"/iceberg/v1/(?:(config)|namespaces/([^/]+)(?:/tables/([^/]+))?)$")


@dataclass
class Gateway:
    """
    :param targets: service → address of its emulator; ``""``: of all others
    :param catalog: ARN of a role → the emulated Glue, as that role sees it
    """

    account: str
    region: str
    targets: Mapping[str, str]
    catalog: Callable[[str], GlueCatalog]
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    """What roles requested and may do."""
    denied: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._watch = Watch(self.account, self.region)

    def denial(self, sent: Sent) -> str | None:
        """Return why the policies of who signed the request deny it; record it."""
        principal = principal_of({"HTTP_AUTHORIZATION": sent.authorization})
        if ":role/" not in principal:
            return None
        policies = policies_of(principal, self.account)
        for request in self._needs(sent):
            request = Request(request.action, request.resource, self._context(request))
            if reason := policies.denial(request):
                text = f"{principal} is not authorized to perform: {request} {reason}"
                self.denied.append(text)
                return text
            self.requests.append(request)
        return None

    def _needs(self, sent: Sent) -> Iterator[Request]:
        if sent.service == "s3":
            yield from _of_s3(sent)
        elif match := _PATH.match(sent.path):
            kind = "config" if match[1] else "table" if match[3] else "namespace"
            action, resources = _REST[kind, sent.method]
            for resource in resources:
                begin = f"arn:aws:glue:{self.region}:{self.account}:"
                yield Request(f"glue:{action}", begin + resource.format(match[2], match[3]))
        elif sent.operation not in NO_POLICY_DENIES:
            given = sent.parameters
            yield from self._watch.needs(sent.service, sent.operation, given)
            if sent.operation == "StartJobRun":
                passed = {"iam:passedtoservice": "emr-serverless.amazonaws.com"}
                yield Request("iam:PassRole", given["executionRoleArn"], passed)

    def _context(self, request: Request) -> dict[str, str]:
        """Return the keys of a request about a role: its boundary is that which it has."""
        context = {"aws:securetransport": "true", **request.context}
        if ":role/" in request.resource and "iam:permissionsboundary" not in context:
            from topicberg_local.emulators.aws.state import backends

            roles = backends("iam")[self.account]["aws"].roles.values()
            role = next((one for one in roles if one.arn == request.resource), None)
            if boundary := role and role.permissions_boundary_arn:
                context["iam:permissionsboundary"] = boundary
        return context

    def rest(self, sent: Sent) -> tuple[int, dict[str, Any]]:
        """Answer as Glue's Iceberg REST catalog does."""
        match = _PATH.match(sent.path)
        assert match, sent.path
        if match[1]:
            return 200, {"defaults": {}, "overrides": {}}
        catalog = self.catalog(principal_of({"HTTP_AUTHORIZATION": sent.authorization}))
        try:
            if match[3] is None:
                catalog.load_namespace_properties(match[2])
                return 200, {"namespace": [match[2]], "properties": {}}
            table = catalog.load_table((match[2], match[3]))
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            kind = f"{type(error).__name__.removesuffix('Error')}Exception"
            return 404, {"error": {"message": str(error), "type": kind, "code": 404}}
        metadata = json.loads(table.metadata.model_dump_json())
        return 200, {
            "metadata-location": table.metadata_location,
            "metadata": metadata,
            "config": {},
        }


@dataclass(frozen=True)
class Sent:
    """A request as it arrived."""

    method: str
    path: str
    query: str
    authorization: str
    target: str
    body: bytes

    @property
    def service(self) -> str:
        match = AUTHORIZATION.match(self.authorization)
        return match["service"].lower() if match else ""

    @property
    def operation(self) -> str:
        if self.service == "emr-serverless":
            return str(emr_serverless.operation_of(self.method, self.path)[0].name)
        if self.service == "lakeformation":
            return self.path[1:]
        return self.target.rpartition(".")[2] or self.parameters["Action"]

    @property
    def parameters(self) -> dict[str, Any]:
        if self.service == "emr-serverless":
            _, found = emr_serverless.operation_of(self.method, self.path)
            return {**json.loads(self.body or b"{}"), **found}
        if self.target or self.service == "lakeformation":
            return dict(json.loads(self.body or b"{}"))
        form = {name: values[0] for name, values in parse_qs(self.body.decode()).items()}
        return form | ({"Tags": True} if any(name.startswith("Tags.") for name in form) else {})


def _of_s3(sent: Sent) -> Iterator[Request]:
    """Yield what a request needs: the table "Actions defined by Amazon S3" of AWS."""
    name, _, key = unquote(sent.path)[1:].partition("/")
    bucket, query = f"arn:aws:s3:::{name}", dict(parse_qsl(sent.query, keep_blank_values=True))
    if not key and sent.method == "POST" and "delete" in query:
        for entry in ET.fromstring(sent.body).iter():  # noqa: S314  of our own client
            if entry.tag.endswith("Object"):
                parts = {part.tag.rpartition("}")[2]: part.text for part in entry}
                action = "DeleteObjectVersion" if parts.get("VersionId") else "DeleteObject"
                yield Request(f"s3:{action}", f"{bucket}/{parts['Key']}")
        return
    if not key:
        setting = next((_BUCKET[one] for one in query if one in _BUCKET), None)
        if setting:
            yield Request(f"s3:{'Get' if sent.method == 'GET' else 'Put'}{setting}", bucket)
        elif sent.method in ("GET", "HEAD"):
            listed = next((_LISTS[one] for one in query if one in _LISTS), "ListBucket")
            yield Request(f"s3:{listed}", bucket)
        else:
            yield Request(
                f"s3:{ {'PUT': 'Create', 'DELETE': 'Delete'}[sent.method] }Bucket", bucket
            )
        return
    reads = {"GET": "GetObject", "HEAD": "GetObject", "DELETE": "DeleteObject"}
    action = reads.get(sent.method, "PutObject")
    if sent.method == "DELETE" and "uploadId" in query:
        action = "AbortMultipartUpload"
    elif sent.method == "DELETE" and "versionId" in query:
        action = "DeleteObjectVersion"
    yield Request(f"s3:{action}", f"{bucket}/{key}")


@contextmanager
def opened(gateway: Gateway) -> Iterator[Gateway]:
    """Serve on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            url = urlsplit(self.path)
            sent = Sent(
                self.command,
                url.path,
                url.query,
                self.headers.get("authorization", ""),
                self.headers.get("x-amz-target", ""),
                body,
            )
            if reason := gateway.denial(sent):
                self.refuse(sent, reason)
            elif sent.path.startswith("/iceberg/"):
                status, answer = gateway.rest(sent)
                self.reply(
                    status, json.dumps(answer).encode(), {"content-type": "application/json"}
                )
            else:
                self.forward(sent)

        def refuse(self, sent: Sent, reason: str) -> None:
            is_json = sent.target or sent.service in ("emr-serverless", "glue")
            if is_json:
                content: dict[str, Any] = {
                    "__type": "AccessDeniedException",
                    "message": reason,
                    "Message": reason,
                }
                if sent.path.startswith("/iceberg/"):
                    content = {"error": {"message": reason, "type": "Forbidden", "code": 403}}
                kind = {"x-amzn-errortype": "AccessDeniedException"}
                status = 403 if sent.service == "emr-serverless" or "error" in content else 400
                self.reply(status, json.dumps(content).encode(), kind)
                return
            error = f"<Error><Code>AccessDenied</Code><Message>{reason}</Message></Error>"
            if sent.service != "s3":
                error = f"<ErrorResponse>{error}</ErrorResponse>"
            self.reply(403, error.encode(), {"content-type": "text/xml"})

        def forward(self, sent: Sent) -> None:
            service = sent.service
            if service == "emr-serverless" and sent.operation in JOB_RUNS:
                service = "jobs"
            target = urlsplit(gateway.targets.get(service, gateway.targets[""]))
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name != "Expect"}
            connection.request(self.command, self.path, sent.body, headers)
            answer = connection.getresponse()
            content = answer.read()
            found = {
                name: value
                for name, value in answer.getheaders()
                if name.lower() not in ("connection", "transfer-encoding", "content-length")
            }
            length = answer.getheader("content-length")
            connection.close()
            self.reply(answer.status, content, found, length if self.command == "HEAD" else None)

        def reply(
            self, status: int, body: bytes, headers: Mapping[str, str], length: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        gateway.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield gateway
        finally:
            server.shutdown()
            thread.join()
