"""S3Proxy: the S3 API over a folder."""

from __future__ import annotations

from botocore.exceptions import ClientError

from topicberg.clients.liveness import answers_http
from topicberg.endpoints import Endpoints
from topicberg_local import jars
from topicberg_local.service import Context, Service, java, jvm, write_file

_LOGBACK = """\
<configuration>
  <appender name="STDERR" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d %p %logger{0}: %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDERR"/></root>
</configuration>
"""


def service(context: Context) -> Service:
    folder, secrets = context.folder("s3"), context.credentials
    properties = {
        "s3proxy.endpoint": context.url("s3"),
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": secrets.s3_access_key,
        "s3proxy.credential": secrets.s3_secret_key.get_secret_value(),
        # Spark's and DuckDB's clients send a large object in one signed request.
        "s3proxy.v4-max-non-chunked-request-size": "268435456",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "local",
        "jclouds.credential": "local",
        "jclouds.filesystem.basedir": str(context.folder("s3/objects")),
    }
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    path = write_file(folder / "s3proxy.properties", text)
    logback = write_file(folder / "logback.xml", _LOGBACK)
    options = [*jvm("256m"), f"-Dlogback.configurationFile={logback}"]
    main = ["org.gaul.s3proxy.Main", "--properties", str(path)]
    return Service(
        name="s3",
        command=java(context, "s3", options, main, jars.class_path("s3")),
        url=context.url("s3"),
        port=context.ports["s3"],
        start_order=10,
        healthy=lambda endpoints: endpoints.boto3("s3", context.config).list_buckets(),
        answers=answers_http(context.url("s3")),
    )


def ensure_buckets(endpoints: Endpoints, context: Context) -> None:
    """Create the buckets of the topics' tables and of derived ones."""
    s3, exists = endpoints.boto3("s3", context.config), "BucketAlready"  # …Exists, …OwnedByYou
    for bucket in (context.config.bucket, context.config.derived_bucket):
        try:
            s3.create_bucket(Bucket=bucket)
        except ClientError as error:
            if not error.response["Error"]["Code"].startswith(exists):
                raise
