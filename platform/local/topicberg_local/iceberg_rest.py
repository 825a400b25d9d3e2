"""Apache Iceberg's own REST catalog servlet over a JDBC catalog in SQLite.

Iceberg's ``RESTCatalogServer`` binds to all interfaces and requires no token, and has no setting
for either. Jetty's XML configuration assembles the same servlet behind a connector on loopback and
a filter of Spark's, which accepts only requests with a JSON Web Token of the stack's key.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark
import requests

from topicberg.clients.liveness import answers_http
from topicberg.endpoints import CATALOG
from topicberg_local import jars, state
from topicberg_local.service import Context, Service, java, jvm, log4j, write_file

_XML = """\
<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "https://jetty.org/configure_10_0.dtd">
<Configure id="server" class="org.eclipse.jetty.server.Server">
  <New id="properties" class="java.util.HashMap">
{properties}
  </New>
  <New id="hadoop" class="org.apache.hadoop.conf.Configuration"/>
  <Call id="catalog" class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">
    <Arg>{name}</Arg>
    <Arg><Ref refid="properties"/></Arg>
    <Arg><Ref refid="hadoop"/></Arg>
  </Call>
  <Call name="addConnector">
    <Arg>
      <New class="org.eclipse.jetty.server.ServerConnector">
        <Arg name="server"><Ref refid="server"/></Arg>
        <Set name="host">127.0.0.1</Set>
        <Set name="port">{port}</Set>
      </New>
    </Arg>
  </Call>
  <Set name="handler">
    <New id="context" class="org.eclipse.jetty.ee10.servlet.ServletContextHandler">
      <Call name="addFilter">
        <Arg>
          <New class="org.eclipse.jetty.ee10.servlet.FilterHolder">
            <Arg><New class="org.apache.spark.ui.JWSFilter"/></Arg>
            <Call name="setInitParameter"><Arg>secretKey</Arg><Arg>{key}</Arg></Call>
          </New>
        </Arg>
        <Arg>/*</Arg>
        <Arg>
          <Call class="java.util.EnumSet" name="of">
            <Arg><Get class="jakarta.servlet.DispatcherType" name="REQUEST"/></Arg>
          </Call>
        </Arg>
      </Call>
      <Call name="addServlet">
        <Arg>
          <New class="org.eclipse.jetty.ee10.servlet.ServletHolder">
            <Arg>
              <New class="org.apache.iceberg.rest.RESTCatalogServlet">
                <Arg>
                  <New class="org.apache.iceberg.rest.RESTCatalogAdapter">
                    <Arg><Ref refid="catalog"/></Arg>
                  </New>
                </Arg>
              </New>
            </Arg>
          </New>
        </Arg>
        <Arg>/*</Arg>
      </Call>
    </New>
  </Set>
</Configure>
"""

_OF_SPARK = (
    "hadoop-client-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "spark-core_*.jar",
    "spark-common-utils_*.jar",
    "scala-library-*.jar",
    "jjwt-*.jar",
)
# The servlet logs each error that it returns, even for a table that does not exist: one line is
# enough, the client has the rest.
_LOGGING = """\
appender.short.type = Console
appender.short.name = short
appender.short.target = SYSTEM_ERR
appender.short.layout.type = PatternLayout
appender.short.layout.pattern = %d %p %c{1}: %m: %ex{short.message}%n
logger.servlet.name = org.apache.iceberg.rest.RESTCatalogServlet
logger.servlet.additivity = false
logger.servlet.appenderRef.short.ref = short
"""


def service(context: Context) -> Service:
    folder = context.folder("iceberg_rest")
    properties = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "jdbc.schema-version": "V1",
        "clients": "1",  # SQLite has one writer
        "warehouse": context.config.warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": context.url("s3"),
        "s3.path-style-access": "true",
        "client.region": context.config.aws_region,
    }
    entries = "\n".join(
        f'    <Call name="put"><Arg>{escape(key)}</Arg><Arg>{escape(value)}</Arg></Call>'
        for key, value in properties.items()
    )
    port, url = context.ports["iceberg_rest"], context.url("iceberg_rest")
    key = context.credentials.iceberg_signing_key.get_secret_value()
    text = _XML.format(properties=entries, name=CATALOG, port=port, key=key)
    xml = write_file(folder / "jetty.xml", text)
    spark = Path(pyspark.__file__).parent / "jars"
    lent = [jar for name in _OF_SPARK for jar in sorted(spark.glob(name))]
    class_path = [*jars.class_path("iceberg_rest"), *lent]
    options = [*jvm("256m"), *log4j(folder, _LOGGING)]
    return Service(
        name="iceberg_rest",
        command=java(
            context,
            "iceberg_rest",
            options,
            ["org.eclipse.jetty.xml.XmlConfiguration", str(xml)],
            class_path,
        ),
        environment=context.aws_environment(),
        url=url,
        port=port,
        start_order=20,
        prepare=lambda: _check(folder / "catalog.db"),
        healthy=lambda endpoints: requests.get(
            f"{url}/v1/namespaces", headers=endpoints.iceberg_rest_headers(), timeout=5
        ).raise_for_status(),
        answers=answers_http(f"{url}/v1/config"),
    )


def _check(database: Path) -> None:
    """Check the database file: SQLite opens any file, and fails only at the first table."""
    if not database.exists() or not database.stat().st_size:
        return
    try:
        with closing(sqlite3.connect(database)) as connection:
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:  # it cannot be opened or read, or is locked
        raise state.unreadable(database, error) from None
    except sqlite3.DatabaseError as error:
        raise state.damaged(database, str(error)) from None
    if result != "ok":
        raise state.damaged(database, str(result).splitlines()[0])
