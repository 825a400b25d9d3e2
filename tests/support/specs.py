"""Specs for tests: a project folder with a schema, and hypothesis strategies for right specs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from topicberg.settings import Settings

FIELDS = {
    "side": "string",
    "quantity": "int",
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "day": {"type": "int", "logicalType": "date"},
    "open": "boolean",
    "tags": {"type": "array", "items": "string"},
}
METADATA = ("$$offset", "$$partition", "$$timestamp")


def avro_schema(fields: dict[str, Any] = FIELDS) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Trade", "namespace": "test", "fields": listed})


class Project:
    """A folder with topic specs and schemas."""

    def __init__(self, root: Path) -> None:
        self.config = Settings(project_root=root, state_dir=root / "state")
        self.config.topics_dir.mkdir(parents=True)
        self.config.schemas_dir.mkdir(parents=True)
        (root / "pyproject.toml").write_text(
            '[tool.topicberg]\ngenerators = ["assets.generators"]\n'
        )
        self.schema("trades.avsc", avro_schema())

    def schema(self, file: str, text: str) -> None:
        path = self.config.schemas_dir / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def topic(self, document: Any, file: str | None = None) -> Path:
        """Write a spec; a dictionary becomes YAML, text is taken as it is."""
        text = document if isinstance(document, str) else yaml.safe_dump(document)
        path = self.config.topics_dir / (file or f"{document['name']}.yaml")
        path.write_text(text)
        return path


def minimal(**fields: Any) -> dict[str, Any]:
    """The smallest right spec, with other fields added or replaced."""
    schema = {"format": "avro", "file": "trades.avsc"}
    return {"name": "trades", "pipeline": "shop", "schema": schema} | fields


names = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,40}", fullmatch=True).filter(
    lambda name: not name.endswith(".")
)
columns = st.sampled_from([*FIELDS, *METADATA])
PARTITIONINGS = (
    "hour($$timestamp)",
    "day(at)",
    "month(day)",
    "bucket[16](side)",
    "truncate[4](side)",
    "quantity",
    "bucket[3](key)",
    "truncate[10](price)",
)

error_handlings = st.one_of(
    st.fixed_dictionaries({"mode": st.sampled_from(["SUSPEND", "SKIP"])}),
    st.just({"mode": "LOG", "target": "dead_letters"}),
)
owners = st.one_of(
    st.text("abcxyz-_ ", min_size=1).map(lambda name: f"team:{name}"),
    st.just("jane.doe+data@example.com"),
)
tableflows = st.fixed_dictionaries(
    {},
    optional={
        "retention_ms": st.integers(86_400_000, 2**63 - 1),
        "data_retention_ms": st.integers(2_592_000_000, 2**63 - 1),
        "error_handling": error_handlings,
        "commit_interval_seconds": st.floats(0.1, 86_400),
        "commit_max_bytes": st.integers(1, 10**12),
    },
)
checks = st.fixed_dictionaries(
    {},
    optional={
        "max_lag_records": st.integers(0, 10**12),
        "not_null": st.lists(columns, unique=True),
        "accepted_values": st.fixed_dictionaries(
            {},
            optional={
                "side": st.lists(st.text(), min_size=1),
                "quantity": st.lists(st.integers(), min_size=1),
                "open": st.just([True]),
            },
        ),
        "ranges": st.fixed_dictionaries(
            {},
            optional={
                "quantity": st.tuples(st.integers(0, 9), st.integers(9, 99)).map(
                    lambda bounds: {"min": bounds[0], "max": bounds[1]}
                ),
                "price": st.just({"max": 12.5}),
            },
        ),
    },
)
documents = st.fixed_dictionaries(
    {
        "name": names,
        "pipeline": st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True),
        "schema": st.just({"format": "avro", "file": "trades.avsc"}),
    },
    optional={
        "description": st.text(),
        "key": st.sampled_from([{"format": "none"}, {"format": "string", "field": "side"}]),
        "partitions": st.integers(1, 10_000),
        "event_time": st.sampled_from(["$$timestamp", "at"]),
        "tableflow": tableflows,
        "table": st.fixed_dictionaries(
            {"partitioning": st.lists(st.sampled_from(PARTITIONINGS), unique=True)}
        ),
        "derived_partitions": st.fixed_dictionaries(
            {"granularity": st.sampled_from(["hourly", "daily"]), "start": st.just("2026-01-01")}
        ),
        "owners": st.lists(owners),
        "freshness": st.integers(1, 1000).map(
            lambda minutes: {"warn_minutes": minutes, "fail_minutes": minutes + 1}
        ),
        "checks": checks,
    },
)
"""Right specs of every shape."""
