"""``topicberg deploy``: the cloud platform, planned, created, inspected, rotated and deleted."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topicberg.cli.output import AsJson, Yes, complain, confirm, echo, echo_json, exit_if, settings
from topicberg.clients import trace
from topicberg.errors import TopicbergError
from topicberg.extensions import local_stack
from topicberg.wording import suggestion
from topicberg_deploy.cli.bootstrap import bootstrap_ci, bootstrap_snowflake
from topicberg_deploy.cli.compute import compute_derived, compute_in_cloud, use_deployment
from topicberg_deploy.cli.output import (
    announce_generators,
    list_grants,
    list_impossible,
    list_kept,
    list_manual_steps,
    list_unseen,
    list_waiting,
    preview,
    report,
    show_plan,
    show_status,
    step_document,
)

if TYPE_CHECKING:
    from topicberg.settings import Settings
    from topicberg_deploy.context import DeployContext
    from topicberg_deploy.preflight import Command
    from topicberg_deploy.resource import Resource


app = typer.Typer(
    help="Make the platform in Confluent Cloud, AWS and Snowflake, and look after it.",
    no_args_is_help=True,
)
app.command("bootstrap-snowflake")(bootstrap_snowflake)
app.command("bootstrap-ci")(bootstrap_ci)


NoCompute = Annotated[
    bool,
    typer.Option(
        "--no-compute", help="without an EMR Serverless application; one that exists is deleted"
    ),
]
NoGenerators = Annotated[
    bool,
    typer.Option(
        "--no-generators",
        help="without the connectors that generate records; those that exist are deleted",
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="only this resource, or all whose key begins with it, e.g. confluent/topic/orders or "
        "snowflake/, and what they need; may be repeated",
    ),
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        help="also this resource, or all whose key begins with it, which `deploy create` did not "
        "create or whose record is lost; may be repeated",
    ),
]


def _trace(debug: bool) -> bool:
    if debug:
        trace.enable()
    return debug


def _option(
    name: str, help: str, *flags: str, of: Any = str | None, **more: Any
) -> tuple[str, Any]:
    flag = f"--{name.replace('_', '-')}"
    return name, Annotated[of, typer.Option(flag, *flags, help=help, **more)]


_OPTIONS = dict(
    (
        _option("profile", "AWS profile, e.g. of SSO"),
        _option("confluent_api_key", "Cloud API key [TOPICBERG_…]"),
        _option(
            "confluent_api_secret",
            "its secret; better in TOPICBERG_CONFLUENT_API_SECRET, since the shell's history keeps "
            "flags; '-' asks for it",
        ),
        _option("snowflake_warehouse", "of the admin's session"),
        _option(
            "admin_user_secrets_root_path",
            "Secrets Manager secret of Snowflake's admin user",
            "--admin-service-user-secrets-root-path",
        ),
        _option(
            "debug",
            "log every request to the vendors, without bodies, headers and secrets",
            of=bool,
            callback=_trace,
        ),
        _option("day_count", "days between rotations; at least 1, default 30", of=int | None),
        _option(
            "number_of_api_keys_to_retain",
            "keys alive of each kind; at least 2, default 2",
            of=int | None,
        ),
    )
)
"""The options of all commands; except for ``--debug`` they are settings."""


def _command(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with the options of all commands but some: its first argument has them."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            flags = {name: given.pop(name) for name in _OPTIONS if name in given}
            flags.pop("debug")
            try:
                function(flags, **given)
            except Exception as error:
                from topicberg.errors.aws import login_hint
                from topicberg.errors.meaning import is_of_vendor

                if not is_of_vendor(error):
                    raise
                hint = login_hint(error, flags["profile"])
                raise TopicbergError(f"{type(error).__name__}: {error}", hint=hint) from error

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        shared = [
            inspect.Parameter(
                name, kind, default=False if name == "debug" else None, annotation=option
            )
            for name, option in _OPTIONS.items()
            if name not in without
        ]
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        command.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        return app.command()(command)

    return register


@_command()
def plan(
    flags: dict[str, Any],
    no_compute: NoCompute = False,
    no_generators: NoGenerators = False,
    everything: Annotated[bool, typer.Option("--all", help="also what stays as it is")] = False,
    target: Target = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="also write the plan to this file, as JSON")
    ] = None,
) -> None:
    """Show what `create` would do, by vendor, what the deployment costs a month by order of
    magnitude, and which quotas it meets. Exit code 1 if there are changes.

    Without a login to any account, everything counts as missing, and the exit code is 0.
    """
    from topicberg.topics import load_topics
    from topicberg_deploy import engine
    from topicberg_deploy.platform import resources
    from topicberg_deploy.resource import Action, Step
    from topicberg_deploy.settings import NoLoginError, check_specs

    config = _settings(compute=not no_compute, generators=not no_generators)
    is_local = config.deployment == "local"
    if is_local:
        echo(
            "This plan is for the emulators of the local stack, not for an account: "
            "TOPICBERG_DEPLOYMENT is local. Set it to cloud to plan for your accounts."
        )
    context = None
    try:
        context, graph = _open(flags, config, before="plan")
        specs, steps = context.specs, engine.plan(_targeted(graph, target), context)
    except NoLoginError as error:
        echo(
            "The accounts were not read, because no login is set: this plan creates everything. "
            "To compare it with your accounts, set:\n  " + "\n  ".join(error.missing)
        )
        check_specs(config, specs := load_topics(config))
        graph = resources(config, specs)
        wanted = [resource for resource in _targeted(graph, target) if resource.wanted]
        steps = [Step(resource, Action.CREATE) for resource in engine.in_order(wanted)]
    if out is not None:
        out.write_text(
            json.dumps([step_document(context, step) for step in steps], indent=2) + "\n"
        )
        echo(f"wrote {out}", err=True)
    changes = show_plan(steps, everything=everything)
    if context:
        list_manual_steps(context, graph)
    if is_local:
        list_impossible(config)
    preview(context.config if context else config, specs, graph, context.live if context else {})
    exit_if(changes and context)


@_command()
def create(
    flags: dict[str, Any],
    no_compute: NoCompute = False,
    no_generators: NoGenerators = False,
    target: Target = None,
    skip_simulation: Annotated[
        bool, typer.Option("--skip-simulation", help="do not let IAM simulate your permissions")
    ] = False,
    irrevocable: Annotated[
        bool,
        typer.Option(
            "--irrevocable",
            help="also do what cannot be undone, as `plan` lists it: add partitions to topics, let "
            "Kafka delete records by a new configuration, delete tables that specs turn off",
        ),
    ] = False,
) -> None:
    """Create what is missing, change what differs, and compute the derived tables once.

    In the local deployment it starts the stack if it is down.
    """
    from topicberg_deploy import engine
    from topicberg_deploy.aws.parameters import noting
    from topicberg_deploy.lock import exclusive

    if settings().deployment == "local":
        local_stack().start(settings())
    config = _settings(compute=not no_compute, generators=not no_generators)
    context, graph = _open(flags, config, before="create", skips_simulation=skip_simulation)
    context.irrevocable = irrevocable
    graph = _targeted(graph, target)
    announce_generators(graph)
    try:
        with exclusive(context), noting(context):
            engine.create(graph, context, report)
    except engine.DeployError:
        list_waiting(context)
        with suppress(Exception):  # the error that ended the deployment is reported
            list_grants(context)
        raise
    list_grants(context)
    computes = not no_compute and not target
    if computes and context.config.deployment == "cloud":
        try:
            compute_in_cloud(context)
        except TopicbergError:
            list_waiting(context)
            raise
    elif computes:
        compute_derived(context)
        if context.waiting:  # the computation also creates tables of topics without records
            with exclusive(context):
                engine.create(graph, context, report)
    list_waiting(context)
    wanted, waiting = sum(resource.wanted for resource in graph), len(context.waiting)
    state = f"{wanted - waiting} of {wanted} resources are up to date"
    later = f", {waiting} wait" if waiting else ""
    echo(f"{state}{later}; nothing is left to do now")


@_command("number_of_api_keys_to_retain")
def delete(
    flags: dict[str, Any],
    purge_secrets: Annotated[
        bool, typer.Option("--purge-secrets", help="delete secrets at once, without AWS's 30 days")
    ] = False,
    yes: Yes = False,
    also: Also = None,
) -> None:
    """Delete what `create` created, with its data. Exit code 2 and a list when something is left.

    What existed before is not deleted, and listed.
    """
    from topicberg_deploy import engine
    from topicberg_deploy.aws.parameters import forget_note
    from topicberg_deploy.lock import exclusive

    context, graph = _open(flags)
    context.purge_secrets = purge_secrets
    context.claimed = frozenset(claimed.key for claimed in _matching(graph, also or []))
    with exclusive(context):
        existing = engine.existing(graph, context, report)
        deleted = [resource for resource, _ in existing]
        list_kept(context)
        list_unseen(context)
        if not deleted and not context.unseen:
            echo("there is nothing to delete")
            return
        if deleted:
            echo("These resources are deleted, in this order; * with data:")
        listed: set[str] = set()
        for resource in deleted:
            echo(f"  {'*' if resource.holds_data else ' '} {resource.title}")
            inside = set(resource.contents(context)) - listed
            listed |= inside
            echo(f"      with table {table}" for table in sorted(inside))
        if holding := [resource.title for resource in deleted if resource.holds_data]:
            complain(
                f"warning: {len(holding)} of them hold data, which cannot be restored: "
                f"{', '.join(holding)}"
            )
        verb, number = ("Delete", len(deleted)) if deleted else ("Forget", len(context.unseen))
        confirm(f"{verb} these {number} resources?", yes=yes)
        left = engine.delete(existing, context, report)
        if not left:
            forget_note(context)
        gone = sorted(context.record.keys() - {resource.key for resource in graph})
    if gone:
        echo(
            "`create` created these too. Their specs or settings are gone, so they stay: "
            + ", ".join(gone)
        )
    if left:
        lines = "\n  ".join(f"{title}: {reason}" for title, reason in left.items())
        raise TopicbergError(
            f"{len(left)} resources are left:\n  {lines}",
            hint="run the command again: it resumes with what is left",
        )
    echo(f"{len(deleted)} resources are deleted")


@_command("day_count", "number_of_api_keys_to_retain")
def status(
    flags: dict[str, Any],
    no_compute: NoCompute = False,
    no_generators: NoGenerators = False,
    as_json: AsJson = False,
) -> None:
    """Show every resource with its id. Exit code 1 when one is missing or differs, unless it waits
    for something that is not topicberg's to do."""
    from topicberg_deploy import engine
    from topicberg_deploy.resource import Action

    context, graph = _open(flags, _settings(compute=not no_compute, generators=not no_generators))
    steps = engine.plan(graph, context)
    if as_json:
        echo_json([step_document(context, step) for step in steps])
    else:
        show_status(context, steps)
    exit_if(any(step.action not in (Action.KEEP, Action.WAIT) for step in steps))


@_command()
def rotate(
    flags: dict[str, Any],
    now: Annotated[bool, typer.Option("--now", help="whatever their age")] = False,
) -> None:
    """Rotate the keys that are due; the keys before stay alive for a whole period."""
    from topicberg_deploy.lock import exclusive
    from topicberg_deploy.rotate import rotate as rotate_keys

    context, graph = _open(flags)
    with exclusive(context):
        rotated = rotate_keys(graph, context, echo, force=now)
    echo(f"{rotated} keys rotated")


@_command("day_count", "number_of_api_keys_to_retain")
def probe(
    flags: dict[str, Any],
    report: Annotated[
        typer.FileTextWrite | None,
        typer.Option(
            "--report",
            lazy=False,  # a file that cannot be written is refused before anything is tried
            help="also write the answers to this file, without names of your accounts",
        ),
    ] = None,
) -> None:
    """Try in the accounts what documentation does not settle; what it creates in Snowflake is
    dropped. Of a deployment, also start a job run of EMR Serverless, which costs cents.

    Exit code 1 if something differs from what is expected."""
    from topicberg_deploy import probe

    context, _ = _open(flags)
    use_deployment(context)
    results = []
    for result in probe.probe(context, is_reported=report is not None):
        results.append(result)
        state = {None: "not tried", "": "as expected"}.get(result.difference, "differs")
        why = result.otherwise if result.difference is None else result.difference
        echo(f"{state}: {result.what}{why and f': {why}'}")
    if report is not None:
        report.write(probe.report(context, results))
        echo(f"wrote {report.name}", err=True)
    exit_if(any(result.difference for result in results))


@app.command()
def graph(
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="a file that ends in .dot, or by Graphviz in .svg, .png or .pdf"
        ),
    ] = Path("platform.dot"),
) -> None:
    """Draw the resource graph. Needs no account."""
    from topicberg.topics import load_topics
    from topicberg_deploy.draw import draw
    from topicberg_deploy.platform import resources

    config = settings()
    draw(
        [resource for resource in resources(config, load_topics(config)) if resource.wanted], output
    )
    echo(f"wrote {output}")


@app.command("emr-image")
def emr_image(
    folder: Annotated[Path, typer.Argument(help="the folder to write into")] = Path("emr-image"),
) -> None:
    """Write what an image for EMR Serverless is built from: code and Dockerfile. Needs no account.

    By default, `topicberg deploy create` uploads the code, and no image is needed.
    """
    from topicberg_deploy.aws.archive import write_image_context

    config = settings()
    write_image_context(config.project_root, folder)
    echo(
        f"wrote {folder}; build it with AWS's image of {config.emr.release} as BASE:\n"
        f"docker build --build-arg BASE=… -t topicberg-emr {folder}"
    )


def _settings(*, compute: bool, generators: bool) -> Settings:
    """
    :param compute: False: without an EMR Serverless application
    :param generators: False: without connectors that generate records"""
    from topicberg.settings import Settings

    config = Settings() if compute else Settings(compute="none")
    return config if generators else config.model_copy(update={"generators": False})


def _open(
    flags: dict[str, Any],
    config: Settings | None = None,
    before: Command | None = None,
    *,
    skips_simulation: bool = False,
) -> tuple[DeployContext, list[Resource]]:
    """
    :param config: by default the settings as they are
    :param before: the command that needs more than the logins
    :raises TopicbergError: settings are missing or wrong, or an account refuses them"""
    from topicberg_deploy.context import open_context
    from topicberg_deploy.platform import resources
    from topicberg_deploy.preflight import check

    if flags.get("confluent_api_secret") == "-":
        flags["confluent_api_secret"] = typer.prompt("Confluent API secret", hide_input=True)
    context = open_context(config or _settings(compute=True, generators=True), flags)
    context.only_plans, context.skips_simulation = before == "plan", skips_simulation
    check(context, before)
    return context, resources(context.config, context.specs)


def _targeted(graph: list[Resource], targets: list[str] | None) -> list[Resource]:
    """The resources that are meant, and all that they need; in the same order."""
    from topicberg_deploy.engine import with_needs

    if not targets:
        return graph
    keys = {resource.key for resource in with_needs(_matching(graph, targets), graph)}
    return [resource for resource in graph if resource.key in keys]


def _matching(graph: list[Resource], targets: list[str]) -> list[Resource]:
    """The resources with these keys, or whose keys begin so.

    :raises TopicbergError: there is no such resource
    """
    chosen: list[Resource] = []
    for target in targets:
        prefix = target.removesuffix("/") + "/"
        meant = [
            resource
            for resource in graph
            if resource.key == target or resource.key.startswith(prefix)
        ]
        if not meant:
            close = suggestion(target, [resource.key for resource in graph]).partition(
                "; there are"
            )[0]
            raise TopicbergError(
                f"no resource {target!r}{close}",
                hint="`topicberg deploy status` lists the keys of all resources",
            )
        chosen += meant
    return chosen
