"""What tables are made of disappears, or records stop to arrive; see :mod:`fault_site`."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from fault_site import ENGINE, NAME, TABLE, TOPIC, End, Fault, Site, kill, refused
from faulty_proxy import Answer

from topicberg.topics import load_topic
from topicberg_local.datagen import runner as datagen

ALLOWED_SECONDS = 60.0
NO_SUBJECT: Answer = (404, "application/json", b'{"error_code":40401,"message":"no subject"}')
NO_SCHEMA: Answer = (404, "application/json", b'{"error_code":40403,"message":"no schema"}')


def schemas_lost(site: Site) -> End:
    """The registry was restored from an old backup, and the engine starts again."""
    end = refused("schema_registry", r"^GET .*/(schemas/ids/\d+|subjects/.*)", NO_SCHEMA)(site)
    kill("tableflow")
    return end


def data_file_deleted(site: Site) -> End:
    catalog = site.direct.catalog(site.config)
    table = catalog.load_table(load_topic(TOPIC).table_identifier(site.config))
    names = [urlsplit(task.file.file_path).path.lstrip("/") for task in table.scan().plan_files()]
    path = max((site.bucket() / name for name in names), key=lambda each: each.stat().st_mtime)
    away = path.with_name("moved")
    path.rename(away)
    return lambda: away.rename(path)


def producer_stopped(site: Site) -> End:
    """The spec allows a minute without a record."""
    file = site.project / f"platform/topics/{TOPIC}.yaml"
    file.write_text(file.read_text().replace("warn_minutes: 30", "warn_minutes: 1"))
    datagen.stop(site.config, TOPIC)
    time.sleep(ALLOWED_SECONDS)

    def end() -> None:
        datagen.start(site.config, TOPIC, rate=2)

    return end


FAULTS = (
    Fault(
        "someone deletes the subject of a topic",
        refused("schema_registry", f"/subjects/{TOPIC}-value", NO_SUBJECT),
        ENGINE,
        f"subject {TOPIC}-value does not exist in the schema registry",
        f"topicberg topics register {TOPIC}",
        TABLE,
    ),
    Fault(
        "the registry has lost its schemas",
        schemas_lost,
        ENGINE,
        f"subject {TOPIC}-value does not exist in the schema registry",
        f"topicberg topics register {TOPIC}",
        TABLE,
    ),
    Fault(
        "a data file of a table is deleted",
        data_file_deleted,
        "run compute_tables",
        "a file of a table is missing in the object store: .*parquet",
        "restore the file",
    ),
    Fault(
        "the producer of a topic stops",
        producer_stopped,
        f"check iceberg/{NAME}:freshness",
        "the topic is stale: no record was produced",
        "datagen start",
        TABLE,
    ),
)
