"""``topicberg topics``: the topic specs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.output import (
    AsJson,
    Yes,
    complain,
    confirm,
    described_fix,
    echo,
    echo_json,
    exit_if,
    load_endpoints,
    print_table,
    report_waiting,
    settings,
    warn,
)
from topicberg.cli.tableflow import compare_schemas, waiting_changes
from topicberg.errors import SpecError, TopicbergError
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings
    from topicberg.topics import TopicSpec

app = typer.Typer(help="Show and check the topic specs.", no_args_is_help=True)


@app.command()
def validate(
    topic: Annotated[
        str | None, typer.Argument(help="One topic; all by default.", show_default=False)
    ] = None,
) -> None:
    """Check the topic specs and their schema files; prints one line per mistake.

    If Kafka and the registry answer, the schemas of topics without schema files are read, and
    schema files are compared with the registered versions. A topic of a pattern that is left out
    is reported; it is a mistake only if you name it.
    """
    from topicberg.topics import check_topics, load_topic
    from topicberg.topics.rules import partition_cost

    config = settings()
    unread = _read_schemas(config)
    specs, problems = check_topics(config)
    if topic is not None:
        problems = [problem for problem in problems if topic in problem.names]
        specs = [load_topic(topic, config)] if not problems else []
    wrong = [problem for problem in problems if topic is not None or not problem.is_of_topic]
    echo(map(str, problems), err=True)
    if left_out := len(problems) - len(wrong):
        warn(f"{count(left_out, 'topic')} of patterns left out")
    if wrong:
        files = count(len({problem.file for problem in wrong}), "file")
        complain(f"error: topic specs: {count(len(wrong), 'mistake')} in {files}")
    if specs:
        echo(f"{len(specs)} topic specs are valid: {', '.join(spec.name for spec in specs)}")
    warn(f"{spec.name}: {cost}" for spec in specs if (cost := partition_cost(spec)))
    _report_unchecked(specs, unread, config)
    report_waiting(*waiting_changes(specs, config))
    unpublished = _report_unpublished(specs, config)
    exit_if(not _compare_with_registry(specs, config) or wrong or unpublished, 2)


def _report_unpublished(specs: list[TopicSpec], config: Settings) -> list[str]:
    """Report topics that publish a table that does not exist; return what is wrong."""
    missing: list[str] = []
    if publishing := [spec for spec in specs if spec.publishes]:
        # The modules of the pipelines take seconds to import.
        from topicberg.orchestration.assets.lake import find_derived, without_table

        try:
            names = [table.name for table in find_derived(config)]
            missing = [*map(str, without_table(publishing, names))]
        except TopicbergError as error:
            warn(f"published tables are not checked: {error.message}")
    complain(missing)
    return missing


def _read_schemas(config: Settings) -> str | None:
    """Read the schemas of topics that have no schema files; return why they were not read."""
    from topicberg.kafka.discovery import discover as look

    try:
        look(load_endpoints(config), config)
    except (TopicbergError, OSError) as error:
        return error.message if isinstance(error, TopicbergError) else str(error)
    return None


def _report_unchecked(specs: list[TopicSpec], unread: str | None, config: Settings) -> None:
    """Report what of the specs is not checked: columns that are not known, and unknown topics."""
    from topicberg.topics.loader import wanted_topics

    reason = unread or "they do not exist, are of another format, or refer to other subjects"
    warn(
        f"{spec.name}: names of columns are not checked, as the schemas of "
        f"{' and '.join(subjects)} are not known: {reason}"
        for spec in specs
        if (subjects := spec.unknown_schemas(config))
    )
    if unread and wanted_topics(config).patterns:
        warn(f"topics of patterns are those that were found last: {unread}")


def _compare_with_registry(specs: list[TopicSpec], config: Settings) -> bool:
    """Report differences between schema files and registry; return False if one is refused."""
    states, unknown = compare_schemas(specs, config)
    if unknown:
        echo(f"the schema files are not compared with the registry: {unknown}", err=True)
    if unknown or not specs:
        return True
    equal = sum(state.state == "equal" for state in states)
    files, are = count(len(states), "schema file"), "is" if equal == 1 else "are"
    echo(f"{equal} of {files} {are} the newest registered version")
    if new := sorted({state.topic for state in states if state.latest is None}):
        echo(
            f"not registered yet: the schemas of {', '.join(new)}; the first producer or the "
            "engine registers them, or run `topicberg topics register TOPIC`"
        )
    for state in states:
        if state.state != "equal" and state.latest is not None:
            (complain if state.acceptable is False else warn)(described_fix(state))
    return not any(state.acceptable is False for state in states)


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """List the topics."""
    from topicberg.topics import check_topics

    specs, problems = check_topics(settings())
    if problems:
        warn(
            f"{count(len(problems), 'mistake')} in specs, whose topics are not listed: run "
            "`topicberg topics validate` to see them"
        )
    if as_json:
        echo_json([spec.model_dump(mode="json", by_alias=True) for spec in specs])
        return

    # The table fits 80 columns; the rest is in --json.
    rows = (
        (
            spec.name,
            spec.pipeline,
            spec.value_schema.format,
            spec.write_mode if spec.tableflow.enabled else "-",
            str(spec.partitions),
            f"{spec.generator.rate:g}/s" if spec.generator else "-",
        )
        for spec in specs
    )
    print_table(
        ("topic", "pipeline", "format", "table", "partitions", "generator"),
        rows,
        caption="table: append or upsert; - if Tableflow is disabled",
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of a topic spec, for editors that complete and check YAML."""
    from topicberg.topics import TopicSpec

    echo_json(TopicSpec.model_json_schema(by_alias=True))


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The Kafka topic, or a pattern.")],
    subject: Annotated[
        str | None,
        typer.Option(
            "--from-subject", help="Subject whose newest schema becomes the values' schema."
        ),
    ] = None,
    from_kafka: Annotated[
        bool,
        typer.Option(
            "--from-kafka",
            help="Infer the schema from some of the topic's records, old and new ones; with a "
            "pattern as the name, e.g. 'orders.*', find the topics in Kafka and their schemas in "
            "the registry.",
        ),
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(
            "--as-pattern", help="With a pattern: write one file of this name for all its topics."
        ),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="Group of its assets; default: the topic's name.")
    ] = None,
    enable: Annotated[
        bool,
        typer.Option(
            "--enable",
            help="Materialize a topic of Kafka at once, not after you reviewed the file.",
        ),
    ] = False,
) -> None:
    """Write the spec of a topic whose schema is in the registry, or in its records.

    A topic that Kafka has is `external`: topicberg never changes it or its schemas. Its table is
    not written before you reviewed the file and removed `enabled: false`, or with --enable.

    If the schema is Debezium's envelope, the table keeps the current rows of the source's table.
    With a pattern, each topic that matches gets a spec; with --as-pattern, one file describes all
    of them, also those that are created later.
    """
    from topicberg.endpoints.schemas import glue_reader
    from topicberg.kafka.consumer import sampled_messages
    from topicberg.kafka.discovery import find_topic, record_type
    from topicberg.topics.discovery import FoundTopic
    from topicberg.topics.new import (
        chosen_for_changes,
        new_external_topic,
        new_topic,
        new_topic_from_kafka,
    )
    from topicberg.topics.patterns import is_pattern

    if from_kafka == (subject is not None):
        raise typer.BadParameter("use one of --from-subject and --from-kafka")
    config = settings()
    if is_pattern(name) or file is not None:
        if not from_kafka:
            raise typer.BadParameter("use --from-kafka with a pattern")
        _new_from_kafka(file, name, pipeline, config, is_enabled=enable)
        return
    group = pipeline or _group(name)
    notes: list[str] = []
    endpoints = load_endpoints(config)
    has = find_topic(name, endpoints, subject)
    if subject is None:
        paths, notes = new_topic_from_kafka(
            name,
            [(message.key(), message.value()) for message in sampled_messages(name, endpoints)],
            group,
            config,
            has or FoundTopic(partitions=1),
            lambda uuid: glue_reader(endpoints, config).version(uuid),
            is_enabled=enable,
            types=lambda number: record_type(number, endpoints),
        )
    elif has is None:
        paths = new_topic(name, subject, group, endpoints.schema_registry_client(), config)
    elif has.value is None:
        raise SpecError(
            f"the schema registry has no subject {subject}",
            hint="list its subjects, or register the schema first",
        )
    else:
        paths = [new_external_topic(name, has, group, config, is_enabled=enable)]
    if has is not None:
        policy = "compacted" if has.is_compacted else "not compacted"
        notes.append(f"the topic has {count(has.partitions, 'partition')} and is {policy}")
    echo(f"wrote {path}" for path in paths)
    echo((*notes, *filter(None, [chosen_for_changes(config, name)])))
    _after_new([name], config, is_enabled=enable or has is None)


def _after_new(topics: list[str], config: Settings, *, is_enabled: bool) -> None:
    """Check new specs with their schemas in the registry, and say what to do next."""
    from topicberg.topics import check_topics

    _read_schemas(config)
    warn(str(problem) for problem in check_topics(config)[1] if problem.names & {*topics})
    if topics and not is_enabled:
        echo(
            "Tableflow is not enabled yet: review what was written, then remove `enabled: false` "
            "under `tableflow`"
        )
    echo("run `topicberg topics validate` to check it, then reload the code location in the UI")


def _group(name: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def _new_from_kafka(
    name: str | None, pattern: str, pipeline: str | None, config: Settings, *, is_enabled: bool
) -> None:
    """Write a spec for each topic that matches, or one file for all of them."""
    from topicberg.kafka.discovery import find_topics
    from topicberg.topics.discovery import read_discovery
    from topicberg.topics.new import new_pattern, new_topics
    from topicberg.topics.patterns import matches

    endpoints = load_endpoints(config)  # it fails before a file is written
    if name is not None:
        group = pipeline or _group(name)
        echo(f"wrote {new_pattern(name, pattern, group, config, is_enabled=is_enabled)}")
        own = sorted(read_discovery(config).topics)  # they are known by specs of their own
        echo(f"{topic}: found" for topic in own if matches([pattern], topic))
        discover()
        _after_new([name], config, is_enabled=is_enabled)
        return
    topics, known = find_topics(pattern, endpoints, config)
    echo(f"{topic}: has a spec" for topic in known)
    made, refused = new_topics(
        topics, lambda topic: pipeline or _group(topic), config, is_enabled=is_enabled
    )
    echo(f"{topic}: wrote {config.topics_dir / topic}.yaml" for topic in made)
    warn(f"{topic}: no spec was written: {reason}" for topic, reason in refused.items())
    echo(
        f"{count(len(made), 'spec')} written, {count(len(refused), 'topic')} left out"
        if topics or known
        else f"no topic of Kafka matches {pattern}; internal topics never match"
    )
    if made:
        _after_new(made, config, is_enabled=is_enabled)


@app.command()
def infer(
    name: Annotated[str, typer.Argument(help="A topic of plain JSON, with a spec.")],
    as_json: AsJson = False,
) -> None:
    """Compare the schema of a topic of plain JSON with what arrives now.

    It reads some of the topic's records, old and new ones, and changes nothing.
    """
    from topicberg.tableflow.layout.drift import compare

    drift = compare(*_topic(name))
    if as_json:
        echo_json(asdict(drift))
        return
    echo(f"{name}: {drift.fitting:,} of {count(drift.records, 'record')} fit {drift.schema}")
    malformed = (
        f"{count(reason.count, 'record')} malformed: {reason.reason} (the first one: partition "
        f"{reason.partition}, offset {reason.offset})"
        for reason in drift.malformed
    )
    lacking = (
        f"the schema lacks the field {field.name}, in {count(field.records, 'record')}, the "
        f"first one of {field.since or 'an unknown time'}: add {json.dumps(field.schema)}"
        for field in drift.unknown
    )
    echo((*malformed, *lacking), fg="yellow")
    if drift.unseen:
        echo(f"no record has the fields {', '.join(drift.unseen)}")


@app.command()
def discover() -> None:
    """Look in Kafka and the registry for the topics of patterns; the engine does so every minute.

    Definitions are loaded from what was found last.
    """
    from topicberg.kafka.discovery import discover as look
    from topicberg.topics import check_topics
    from topicberg.topics.discovery import read_discovery

    config = settings()
    new, gone = look(load_endpoints(config), config)
    echo(f"{name}: found" for name in new)
    echo(f"{name}: no longer there" for name in gone)
    warn(str(problem) for problem in check_topics(config)[1] if problem.is_of_topic)
    known = count(len(read_discovery(config).topics), "topic")
    echo(f"{known} of patterns; reload the code location in the UI if it changed")


Name = Annotated[str, typer.Argument(help="The Kafka topic.")]


def _topic(name: str) -> tuple[TopicSpec, Endpoints, Settings]:
    from topicberg.topics import load_topic

    config = settings()
    return load_topic(name), load_endpoints(config), config


@app.command("register")
def register_schemas(name: Name) -> None:
    """Register the schema files of a topic, if their subjects' compatibility levels allow it."""
    from topicberg.kafka import schemas

    spec, endpoints, config = _topic(name)
    if not (states := schemas.register(spec, endpoints, config)):
        echo(f"{name}: nothing to register: {schemas.why_no_files(spec)}")
    echo(f"{name}: {state.what}" for state in states)


@app.command()
def pull(name: Name) -> None:
    """Write the newest registered versions of a topic's schemas to its schema files."""
    from topicberg.kafka import schemas

    spec, endpoints, config = _topic(name)
    written = schemas.pull(spec, endpoints, config)
    echo(f"{name}: wrote {path}" for path in written)
    if not any(spec.schema_files(config)):
        echo(f"{name}: nothing to write: {schemas.why_no_files(spec)}")
    elif not written:
        echo(f"{name}: the schema files are the newest registered versions")


@app.command()
def grow(name: Name, yes: Yes = False) -> None:
    """Add the partitions that the topic's spec has and Kafka lacks. It cannot be undone.

    A key's new records may be in another partition than its older ones, so consumers no longer
    read them in order. A compacted topic, as of an upsert table, is refused.
    """
    from topicberg.kafka import topics as kafka

    spec, endpoints, _ = _topic(name)
    has = f"{name}: the topic has {count(spec.partitions, 'partition')}"
    if not (more := kafka.growth(spec, endpoints)):
        echo(f"{has}, as its spec says")
        return
    warn(
        f"{name}: new records of a key may be in another partition than its older ones: consumers "
        "no longer read them in order"
    )
    question = f"Add {count(more, 'partition')} to topic {name}, so that it has {spec.partitions}?"
    confirm(f"{question} It cannot be undone", yes=yes)
    kafka.grow_topic(spec, endpoints)
    echo(has)


@app.command()
def configure(name: Name, yes: Yes = False) -> None:
    """Set configurations of the topic's spec by which Kafka deletes records: a shorter retention,
    another `cleanup.policy`. It cannot be undone."""
    from topicberg.kafka import topics as kafka

    spec, endpoints, _ = _topic(name)
    changes = kafka.losing_configs(spec.topic_config, kafka.topic_config(endpoints, spec.name))
    if not (configs := ", ".join(f"{name}: {value}" for name, value in changes.items())):
        echo(f"{name}: no configuration of the spec deletes records that Kafka keeps now")
        return
    question = f"Set {configs}, so that Kafka deletes records of topic {name} earlier?"
    confirm(f"{question} It cannot be undone", yes=yes)
    kafka.set_configs(spec, endpoints, changes)
    echo(f"{name}: set {configs}")


@app.command("restore-schema")
def restore_schema(name: Name, yes: Yes = False) -> None:
    """Delete the versions of the topic's subjects that came after the schema of its spec.

    Use it if a version was registered that no table can follow, and the topic is suspended.
    Records that were written with such a version stay in the topic: Tableflow reports them.
    """
    from topicberg.kafka import schemas

    spec, endpoints, config = _topic(name)
    if not (versions := schemas.later_versions(spec, endpoints, config)):
        echo(f"{name}: the registry has no version after the schema files'")
        return
    echo(f"{subject}: version {version} will be deleted" for subject, version in versions)
    confirm("Delete them? It cannot be undone", yes=yes)
    schemas.delete_versions(versions, endpoints)
    echo(f"{subject}: version {version} is deleted" for subject, version in versions)
    echo(
        f"{name}: a suspended topic resumes by itself within 30 seconds; "
        f"run `topicberg tableflow status {name}` to see its state"
    )
