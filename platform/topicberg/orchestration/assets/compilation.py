"""Derived tables compiled against the schemas of their sources, without a run.

The sources are empty DataFrames with the columns that the schema files give their tables; Spark
analyzes what each function returns. Nothing is read, and nothing is written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from topicberg.errors import SpecError, TopicbergError, line_in
from topicberg.orchestration.assets.derived import (
    DerivedTable,
    derivation,
    described_columns,
    with_parameters,
)
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.metadata import source_columns
from topicberg.query.help import hint as similar_names
from topicberg.topics import TopicSpec
from topicberg.topics.schema import read_schema
from topicberg.transforms.topic_columns import topic_columns
from topicberg.wording import suggestion

_TIMES = ("timestamp", "timestamp_ntz", "date")
LINEAGE_HINT = "correct `lineage={…}`: column of the result → columns of the sources"


@dataclass(frozen=True)
class Column:
    """A column of a compiled table; ``description``: of the source's column that it passes on."""

    name: str
    type: str
    description: str | None


@dataclass(frozen=True)
class Compiled:
    """A derived table, and what is wrong with it."""

    table: str
    file: str
    columns: tuple[Column, ...] = ()
    problem: str | None = None
    hint: str | None = None


def compile_tables(lake: Lake, spark: "SparkSession") -> Iterator[Compiled]:
    """Compile the derived tables, sources first, but those of which a source has a problem."""
    schemas: dict[str, StructType] = {}
    for derived in lake.in_order:
        try:
            for name in derived.reads:
                if name not in schemas:
                    if name in lake.derived_by_name:
                        raise TopicbergError(f"its source {name} has a problem")
                    schemas[name] = topic_columns(lake.ingested[name].root, lake.config)
            derivation(derived, lake)  # its declarations, and that its source can be read
            schema = _columns(lake, derived, schemas, spark)
        except TopicbergError as error:
            yield Compiled(derived.name, derived.file, (), error.message, error.hint)
            continue
        schemas[derived.name] = schema
        descriptions = described_columns(derived.description)
        columns = [
            Column(
                field.name,
                field.dataType.simpleString(),
                descriptions.get(field.name) or (field.metadata or {}).get("comment"),
            )
            for field in schema
        ]
        yield Compiled(derived.name, derived.file, tuple(columns))


def _columns(
    lake: Lake, derived: DerivedTable, schemas: "Mapping[str, StructType]", spark: "SparkSession"
) -> "StructType":
    """Return its columns; raise TopicbergError if it fails, or its table could not be written."""
    frames = [spark.createDataFrame([], schemas[name]) for name in derived.reads]
    function = with_parameters(derived.transform, derived.parameters_of(lake.root(derived)))
    try:
        result: DataFrame = function(*frames)
        if not hasattr(result, "schema"):
            raise SpecError(
                f"its function returns a {type(result).__name__}, not a DataFrame",
                hint="return the rows of the table",
            )
        schema = result.schema
    except TopicbergError:
        raise
    except Exception as error:
        columns = {name: schemas[name].names for name in derived.reads}
        raise _explained(derived, error, columns) from error
    _check(lake, derived, schema, schemas)
    return schema


def _explained(
    derived: DerivedTable, error: Exception, columns: Mapping[str, list[str]]
) -> TopicbergError:
    text = str(error).partition("JVM stacktrace:")[0].strip()
    reason = next(iter(text.splitlines()), "").rstrip(";") or type(error).__name__
    if not type(error).__module__.startswith("pyspark"):
        reason = f"{type(error).__name__}: {reason}"
    line = line_in(error, derived.file)
    return TopicbergError(
        f"its function fails{f' (line {line})' if line else ''}: {reason}",
        hint=similar_names(text, "spark", lambda: columns)
        or "correct the function, or the schema of what it reads",
    )


def _check(
    lake: Lake, derived: DerivedTable, schema: "StructType", schemas: "Mapping[str, StructType]"
) -> None:
    """:raises SpecError: a table with these columns could not be written, checked or published"""
    names, time = schema.names, derived.time_column
    if time not in names:
        raise SpecError(
            f"its function returns no column {time}, its time_column{suggestion(time, names)}",
            hint="return the event time of the source under that name",
        )
    if (kind := schema[time].dataType.simpleString()) not in _TIMES:
        raise SpecError(
            f"its time_column {time} is a {kind}, not a time",
            hint="return the event time of the source as it is",
        )
    for first, other in combinations(names, 2):
        if first.lower() == other.lower():
            raise SpecError(
                f"its function returns {first} and {other}, which are one column",
                hint="rename one of them: Spark, Glue and Snowflake ignore case",
            )
    for naming, columns, hint in (
        (
            "its rules name a column",
            derived.rules.columns,
            "correct `rules=Rules(…)` or the function",
        ),
        (
            "its docstring describes a column",
            described_columns(derived.description),
            "correct the section `Columns:` of the docstring, or the function",
        ),
        ("its lineage names a column", derived.lineage, LINEAGE_HINT),
        *(
            (
                f"topic {spec.name} publishes a field",
                _published_columns(spec, lake),
                "return the column, or remove the field from the topic's schema",
            )
            for spec in lake.published(derived)
        ),
    ):
        for column in columns:
            if column not in names:
                raise SpecError(
                    f"{naming} {column}, which its function does not return"
                    f"{suggestion(column, names)}",
                    hint=hint,
                )
    _check_lineage(derived, schemas)


def _check_lineage(derived: DerivedTable, schemas: "Mapping[str, StructType]") -> None:
    """:raises SpecError: it names a column that a source does not have"""
    for origin in chain.from_iterable(derived.lineage.values()):
        of_sources = [*source_columns([origin], derived.reads, derived.sources)]
        known = [column for source, _ in of_sources for column in schemas[source].names]
        _, name = of_sources[0]
        if name not in known and name.partition(".")[0] not in known:
            where = " or ".join(source for source, _ in of_sources)
            raise SpecError(
                f"its lineage names {origin}, but {where} has no column {name}"
                f"{suggestion(name, known)}",
                hint=LINEAGE_HINT,
            )


def _published_columns(spec: TopicSpec, lake: Lake) -> set[str]:
    schemas = (read_schema(p, s.format, s.message) for _, s, p in spec.schema_files(lake.config))
    columns = {column for schema in schemas for column in schema.columns}
    return columns | {spec.key.field} if spec.key.field else columns
