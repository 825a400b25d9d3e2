"""Apache Flink as a contender of the ingest benchmark: ``FlinkIngest.java`` in a JVM that stays up.
The jars come from Maven Central. ``javac`` compiles the source, so a JDK 17 or later is needed: its
``javac`` on the ``PATH``, or ``JAVA_HOME``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lock_jars import Bundle, resolve

from topicberg.endpoints import Endpoints
from topicberg.settings import Settings
from topicberg_local.jars import maven_context

FLINK = "2.1.1"
ICEBERG = "1.11.0"
HADOOP = "3.4.2"
SOURCE = Path(__file__).with_name("FlinkIngest.java")
BUNDLE = Bundle(
    transitive=True,
    # Two artifacts have LZ4's classes. Confluent's registry client is not on Maven Central.
    exclude=["org.lz4:lz4-java", "io.confluent:*"],
    coordinates=[
        "org.apache.flink:flink-connector-kafka:5.0.0-2.1",
        f"org.apache.flink:flink-connector-base:{FLINK}",
        f"org.apache.flink:flink-streaming-java:{FLINK}",
        f"org.apache.flink:flink-runtime:{FLINK}",
        f"org.apache.flink:flink-clients:{FLINK}",
        f"org.apache.flink:flink-table-api-java-bridge:{FLINK}",
        f"org.apache.flink:flink-table-runtime:{FLINK}",
        f"org.apache.flink:flink-avro:{FLINK}",
        f"org.apache.iceberg:iceberg-flink-runtime-2.1:{ICEBERG}",
        f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
    ],
)
PARALLELISM = 2
KAFKA = {
    "isolation.level": "read_committed",
    "max.poll.records": "20000",
    "max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "fetch.max.bytes": str(64 * 1024 * 1024),
    "receive.buffer.bytes": str(1024 * 1024),
    "partition.discovery.interval.ms": "-1",
}
"""Settings of the source's consumers: large fetches, since the topic is read from its beginning."""
JVM = [
    "-Xmx3g",
    "-XX:+UseParallelGC",
    *(
        f"--add-opens=java.base/{name}=ALL-UNNAMED"
        for name in ("java.util", "java.lang", "java.nio")
    ),
]


def jdk() -> Path | None:
    """Return the ``bin`` folder of a JDK; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home, "bin")) if home else None)
    found = found or shutil.which("javac")
    return Path(found).resolve().parent if found else None


def rest_catalog(endpoints: Endpoints, config: Settings) -> dict[str, str]:
    """Return the properties of the stack's catalog for Iceberg's REST client in Java."""
    secrets = endpoints.s3_access_key, endpoints.s3_secret_key
    token = endpoints.iceberg_rest_token
    return {
        "uri": endpoints.iceberg_rest,
        "token": token.get_secret_value() if token else "",
        "token-refresh-enabled": "false",
        "warehouse": config.warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": config.aws_region,
        "s3.endpoint": endpoints.s3 or "",
        "s3.path-style-access": "true",
        "s3.access-key-id": secrets[0].get_secret_value() if secrets[0] else "",
        "s3.secret-access-key": secrets[1].get_secret_value() if secrets[1] else "",
    }


class Cluster:
    """A running Flink cluster in one JVM."""

    def __init__(self, stdin: IO[str], stdout: IO[str], log: Path) -> None:
        self._stdin, self._stdout, self._log = stdin, stdout, log

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a line and wait for its answer.

        :raises RuntimeError: the cluster or the job failed
        """
        self._stdin.write(json.dumps(request) + "\n")
        self._stdin.flush()
        answer = self._stdout.readline().strip()
        if answer not in ("ready", "done"):
            text = self._log.read_text()
            raise RuntimeError(f"Flink does not finish the job: {answer}\n{text[-4000:]}")


@contextmanager
def cluster(
    folder: Path, bin_dir: Path, kafka: Mapping[str, str], catalog: Mapping[str, str]
) -> Iterator[Cluster]:
    """Compile the source, and run a cluster until the block ends.

    :param bin_dir: see :func:`jdk`
    :param kafka: the login to Kafka
    :param catalog: properties of Iceberg's REST catalog
    """
    context = maven_context()
    jars = [str(Path(one.of(context).resolve())) for one in resolve(BUNDLE)]
    path = ":".join([str(folder), *jars])
    compiler = [str(bin_dir / "javac"), "-nowarn", "-cp", path, "-d", str(folder), str(SOURCE)]
    subprocess.run(compiler, check=True)
    log = folder / "flink.log"
    command = [str(bin_dir / "java"), *JVM, "-cp", path, "FlinkIngest"]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        one = Cluster(process.stdin, process.stdout, log)
        try:
            one.ask({"parallelism": PARALLELISM, "kafka": KAFKA | dict(kafka), "catalog": catalog})
            yield one
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
