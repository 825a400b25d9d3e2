"""Draw the charts of the pipelines as they are in ``docs/pipelines.md``.

    python docs/images/charts.py

needs a running stack. The records are the generators' own, of one hour; no table is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from topicberg.charts import png
from topicberg.datagen import record_generator
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.derived import with_parameters
from topicberg.settings import settings
from topicberg.testing import spark_session, topic_frame
from topicberg.topics import load_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, 9, tzinfo=UTC)
MINUTES = 60
RECORDS = 2_000


def records(kind: str) -> Iterator[dict[str, Any]]:
    """An hour of a generator's records, at random times."""
    random = Random(kind)  # noqa: S311  the same picture every time
    for record in islice(record_generator(kind)(random, 1), RECORDS):
        yield record | {"$$timestamp": START + timedelta(minutes=random.uniform(0, MINUTES))}


def main() -> None:
    lake = Lake(settings(), tuple(load_topics()), tuple(find_derived()))
    with spark_session() as spark:
        for derived in lake.derived:
            if derived.chart is None:
                continue
            parameters = derived.parameters_of(lake.root(derived))
            sources = (_source(spark, lake, name) for name in derived.sources)
            rows = with_parameters(derived.transform, parameters)(*sources)
            figure = with_parameters(derived.chart, parameters)(rows)
            Path(__file__).with_name(f"{derived.name}.png").write_bytes(png(figure))


def _source(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    spec = lake.ingested[name].root
    assert spec.generator  # noqa: S101  all of them are generated
    return topic_frame(spark, spec, list(records(spec.generator.kind)))


if __name__ == "__main__":
    main()
