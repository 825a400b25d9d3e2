"""What a job run of EMR Serverless requests from AWS, as permissions of IAM.

Most of it is recorded: ``tests/integration/test_emr_job.py`` runs Spark and the job on the local
stack, reads the requests from the log of the AWS SDK, of Iceberg's REST client and of urllib3, and
fails if one is not listed here. What only AWS does is listed with its source.

Operations of Glue's Iceberg REST catalog, and the action that each needs:
https://docs.aws.amazon.com/glue/latest/dg/iceberg-rest-apis.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

RECORDED = "recorded"
S3A = (
    "Apache Hadoop 3.4, hadoop-aws, S3AFileSystem.s3GetFileStatus: HEAD of the key, and if there is"
    " none, LIST of the keys below it; open: GET"
)
SDK = (
    "Apache Hadoop 3.4, hadoop-aws, DefaultS3ClientFactory: access across regions is enabled, and"
    " the SDK then sends HeadBucket to learn the region"
)
LOGS = "https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html"
SAMPLE_ROLE = (
    "https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/getting-started.html:"
    " actions of the sample role on the buckets and the databases"
)


@dataclass(frozen=True)
class Need:
    """
    :param resource: a bucket (``topics``, ``derived``, ``compute``) or keys in it, or of Glue
        ``catalog``, ``topics_table``, ``derived_table``, ``topics_database``, ``derived_database``
    :param operation: what is requested
    :param source: how it is known
    """

    action: str
    resource: str
    operation: str
    source: str = RECORDED


NEEDS = [
    Need("s3:GetObject", "topics/*", "HeadObject and GetObject of metadata and data files"),
    Need("s3:GetObject", "derived/*", "HeadObject and GetObject of metadata and data files"),
    Need("s3:PutObject", "derived/*", "PutObject of metadata and data files"),
    Need(
        "s3:DeleteObject",
        "derived/*",
        "DeleteObject of the data files of a write that failed",
        "Apache Iceberg 1.11, spark, SparkWrite.abort",
    ),
    Need(
        "s3:AbortMultipartUpload",
        "derived/*",
        "AbortMultipartUpload of a data file that a failed task wrote",
        "Apache Iceberg 1.11, aws, S3OutputStream.abortUpload",
    ),
    Need("s3:PutObject", "compute/jobs/*", "PutObject of what the job reports to Dagster"),
    Need("s3:PutObject", "compute/jobs/*", "upload of the logs of driver and executors", LOGS),
    Need("s3:GetObject", "compute/code/*", "the entry point, and the archive of the code", S3A),
    Need("s3:ListBucket", "compute", "LIST below a key that does not exist", S3A),
    *(
        Need("s3:ListBucket", bucket, "HeadBucket", SDK)
        for bucket in ("topics", "derived", "compute")
    ),
    *(
        Need("s3:GetBucketLocation", bucket, "GetBucketLocation", SAMPLE_ROLE)
        for bucket in ("topics", "derived", "compute")
    ),
    Need("glue:GetCatalog", "catalog", "getConfig"),
    Need("glue:GetTable", "topics_table", "loadTable"),
    Need("glue:GetTable", "derived_table", "loadTable, tableExists"),
    Need("glue:CreateTable", "derived_table", "createTable"),
    Need("glue:UpdateTable", "derived_table", "updateTable: a commit"),
    *(
        Need(f"glue:{action}", f"{of}_database", "of Spark's catalog", SAMPLE_ROLE)
        for of in ("topics", "derived")
        for action in ("GetDatabase", "GetDatabases", "GetTables")
    ),
]
LOCAL_ONLY = {("glue:UpdateTable", "topics_table"), ("glue:CreateDatabase", "derived_database")}
"""What a deployment does not request: tags on what is read, of topics' tables that topicberg's own
engine writes (those of Confluent's Tableflow get none, see :mod:`topicberg.iceberg.read_tags`); and
the database of a pipeline, which exists there, so that its HEAD finds it."""
_SDK_LINE = re.compile(
    r"Sending Request: .*httpMethod=([A-Z]+),.* encodedPath=([^,]*),.*queryParameters=\[([^\]]*)\]"
)
_REST_LINE = re.compile(r">> (GET|POST|HEAD|DELETE|PUT) (\S+) HTTP")
_PYTHON_LINE = re.compile(r'urllib3\.connectionpool: \S+ "([A-Z]+) (\S+) HTTP')


def arns(topics: str, database: str, account: str = "123456789012") -> list[tuple[str, str]]:
    """Return the action and the resource of each need in a deployment with the prefix ``demo``.

    :param topics, database: of Glue: that of the topics' tables, and that of derived tables
    """
    bucket, glue = f"demo-{account}", f"arn:aws:glue:us-east-1:{account}"
    places = {
        "topics": f"arn:aws:s3:::{bucket}",
        "derived": f"arn:aws:s3:::{bucket}-derived",
        "compute": f"arn:aws:s3:::{bucket}-compute",
        "catalog": f"{glue}:catalog",
        "topics_database": f"{glue}:database/{topics}",
        "topics_table": f"{glue}:table/{topics}/stock_trades",
        "derived_database": f"{glue}:database/{database}",
        "derived_table": f"{glue}:table/{database}/totals",
    }
    found = []
    for need in NEEDS:
        place, slash, key = need.resource.partition("/")
        found.append((need.action, places[place] + slash + key.replace("*", "folder/file")))
    return found


def recorded(log: str, buckets: dict[str, str], topics: str) -> set[tuple[str, str]]:
    """Return the actions and resources, as in :data:`NEEDS`, that the requests in a log need.

    :param buckets: name, or folder in it → ``topics``, ``derived`` or ``compute``; the first counts
    :param topics: the namespace of the topics' tables
    """
    found: set[tuple[str, str]] = set()
    for line in log.splitlines():
        if match := _SDK_LINE.search(line):
            query = re.findall(r"([\w-]+)=", match[3])
            found.update(_of_s3(match[1], unquote(match[2]), query, buckets))
        elif match := _REST_LINE.search(line) or _PYTHON_LINE.search(line):
            path = urlsplit(match[2])
            if path.path.startswith("/v1/"):
                found.update(_of_catalog(match[1], unquote(path.path), topics))
            else:
                query = [name for name, _ in parse_qsl(path.query, keep_blank_values=True)]
                found.update(_of_s3(match[1], unquote(path.path), query, buckets))
    return found


def _of_s3(
    method: str, path: str, query: list[str], buckets: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield what a request to S3 needs: the table "Actions defined by Amazon S3" of AWS."""
    bucket = next(place for name, place in buckets.items() if path[1:].startswith(name))
    key = path[1:].partition("/")[2]
    if not key and method in ("GET", "HEAD"):
        yield "s3:GetBucketLocation" if "location" in query else "s3:ListBucket", bucket
        return
    folder = "jobs/*" if bucket == "compute" else "*"
    if method == "DELETE" and "uploadId" in query:
        action = "AbortMultipartUpload"
    elif method == "DELETE" or "delete" in query:
        action = "DeleteObject"
    else:
        action = {"GET": "GetObject", "HEAD": "GetObject"}.get(method, "PutObject")
    yield f"s3:{action}", f"{bucket}/{folder}"


def _of_catalog(method: str, path: str, topics: str) -> Iterator[tuple[str, str]]:
    parts = path.split("/")[2:]
    if parts == ["config"]:
        yield "glue:GetCatalog", "catalog"
        return
    assert parts[0] == "namespaces", path
    if len(parts) == 1:
        yield (
            {"POST": "glue:CreateDatabase", "GET": "glue:GetDatabases"}[method],
            "derived_database",
        )
        return
    of = "topics" if parts[1:2] == [topics] else "derived"
    if len(parts) == 2:
        yield {"GET": "glue:GetDatabase", "HEAD": "glue:GetDatabase"}[method], f"{of}_database"
    elif len(parts) == 3:
        assert parts[2] == "tables", path
        yield {"POST": ("glue:CreateTable", f"{of}_table")}.get(
            method, ("glue:GetTables", f"{of}_database")
        )
    elif parts[4:] != ["metrics"]:  # of which Glue's catalog has none: the client continues without
        action = {"GET": "GetTable", "HEAD": "GetTable", "POST": "UpdateTable"}[method]
        yield f"glue:{action}", f"{of}_table"
