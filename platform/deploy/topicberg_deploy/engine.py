"""Plan, create and delete: the resource graph, walked in its order.

Every step looks before it acts, so a walk that was killed is simply started again. Steps that do
not need each other run at the same time: most of the time is waiting for a vendor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from enum import Enum
from functools import partial
from graphlib import TopologicalSorter

from tenacity import wait_exponential

from topicberg.clients.confluent import ConflictError, CredentialsError, GoneError, UncertainError
from topicberg.errors import TopicbergError
from topicberg.errors.aws import is_expired, login_hint, was_repeated
from topicberg.errors.meaning import means
from topicberg.errors.retry import retry
from topicberg.errors.table import EVENTUAL, EXISTS, MISSING, UNACCEPTED, UNANSWERED
from topicberg_deploy.context import WORKERS
from topicberg_deploy.polling import DeadlineExceededError, poll, report_progress
from topicberg_deploy.record import BEGUN, MEASURED
from topicberg_deploy.resource import (
    Action,
    CannotChangeError,
    Changes,
    DeployContext,
    HiddenError,
    Live,
    MissingError,
    Resource,
    Step,
    WaitingError,
    compare,
)

logger = logging.getLogger(__name__)

Report = Callable[[Resource, str], None]
"""Receives what happens to a resource."""

PASSES = (EVENTUAL, UNANSWERED)
"""Failures after which the state is read again, and the request repeated. The vendors' clients have
repeated what is safe to repeat."""
GONE_SECONDS = 30 * 60.0
TRIES = 8
CONFLICT_TRIES = 24
"""Attempts of a deletion: what used it disappears after minutes. About ten minutes in all."""
UNCERTAIN_SECONDS = 60.0
"""How long to look for what an unanswered request may have created, if it may exist twice."""
PAUSES = (5.0, 10.0, 20.0, 40.0, 60.0, 60.0)
"""Seconds between attempts that were refused, about three minutes in all: permissions take about 90
seconds to spread."""


NOT_OURS = "`deploy create` did not create it"
NEEDED = "what holds data and is left needs it"
DELETES_DATA = "its spec turns it off: `deploy create --irrevocable` deletes it with its data"


class DeployError(TopicbergError):
    """Some resources could not be created, or are left after a delete."""


def in_order(resources: Iterable[Resource]) -> list[Resource]:
    """Each resource after all that it needs."""
    by_key = {resource.key: resource for resource in resources}
    order = TopologicalSorter({key: by_key[key].needs for key in by_key}).static_order()
    return [by_key[key] for key in order if key in by_key]


def identity(resource: Resource, context: DeployContext, live: Live) -> str:
    """Return which one it is, as far as vendors tell: its id, and those of what it is inside."""
    around = [context.live[key].id for key in resource.parents if key in context.live]
    return " ".join([*around, resource.lasting_id(live)])


def _is_inside_ours(resource: Resource, context: DeployContext) -> bool:
    return not context.ours.isdisjoint(resource.parents)


def may_own(resource: Resource, context: DeployContext) -> bool:
    """Return whether ``deploy`` may have created a resource, before it is looked at."""
    claimed = _is_inside_ours(resource, context) or resource.key in context.claimed
    return claimed or context.record.get(resource.key) is not None


def owns(resource: Resource, context: DeployContext, live: Live) -> bool:
    """Return whether ``deploy`` created it, or what it goes with; ``context.ours`` then has it."""
    created = context.record.get(resource.key) in (BEGUN, identity(resource, context, live))
    is_ours = created or _is_inside_ours(resource, context) or resource.key in context.claimed
    if is_ours:
        context.ours.add(resource.key)
    else:
        context.ours.discard(resource.key)
    return is_ours


def look(resource: Resource, context: DeployContext) -> Live | None:
    """The resource as it is now; what depends on it then finds it in ``context``.

    :raises MissingError: it cannot be seen because something that is needed to look is missing
    """
    context.live.pop(resource.key, None)
    context.waiting.pop(resource.key, None)
    for key in resource.within:
        context.need(key)
    if (live := resource.find(context)) is not None:
        context.live[resource.key] = live
    return live


def examine(resource: Resource, context: DeployContext) -> Step:
    """What ``create`` would do with it."""
    try:
        live = look(resource, context)
    except (MissingError, CredentialsError, GoneError) as error:
        key = error.key if isinstance(error, MissingError) else "its key"
        if key in context.waiting and resource.wanted:
            return _wait(resource, context, context.waiting[key])
        if key in resource.within:
            return Step(resource, Action.CREATE if resource.wanted else Action.KEEP)
        return Step(resource, Action.LOOK, reason=f"{key} comes first")
    ours = live is not None and owns(resource, context, live)
    if not resource.wanted and ours and resource.holds_data and not context.irrevocable:
        return Step(resource, Action.KEEP, reason=DELETES_DATA)
    if not resource.wanted:
        reason = NOT_OURS if live is not None and not ours else ""
        return Step(resource, Action.DELETE if ours else Action.KEEP, reason=reason)
    if live is None:
        with suppress(MissingError, CredentialsError, GoneError):  # created before it, then
            if reason := resource.waits(context):
                return _wait(resource, context, reason)
        return Step(resource, Action.CREATE)
    try:
        changes = difference(resource, context, live)
    except MissingError as error:
        return Step(resource, Action.CHANGE, reason=f"follows {error.key}")
    is_replaced = set(changes) & resource.replaced_for
    action = Action.REPLACE if is_replaced else Action.CHANGE if changes else Action.KEEP
    return Step(resource, action, changes, resource.remark(context, live))


def _wait(resource: Resource, context: DeployContext, reason: str) -> Step:
    context.waiting[resource.key] = reason
    return Step(resource, Action.WAIT, reason=reason)


def difference(resource: Resource, context: DeployContext, live: Live) -> Changes:
    """:raises MissingError: what it is created from does not exist yet"""
    changes = compare(live.fields, resource.desired(context))
    if orphans := resource.orphans(context, live):
        changes["unused"] = (orphans, [])
    return changes


def plan(resources: Iterable[Resource], context: DeployContext) -> list[Step]:
    """What ``create`` would do with each resource, in order.

    :raises DeployError: names what cannot be read, or cannot be as it is wanted
    """
    by_key = {resource.key: resource for resource in in_order(resources)}
    steps: dict[str, Step] = {}
    context.record.load()

    def look_at(resource: Resource) -> None:
        steps[resource.key] = examine(resource, context)

    if failed := _walk(by_key, look_at):
        hints = (login_hint(error, context.deploy.profile) for error in failed.values())
        hint = next(filter(None, hints), None)
        raise _failure(by_key, failed, context, "cannot be planned", hint)
    left = [step.resource for step in steps.values() if step.reason == DELETES_DATA]
    for resource in with_needs(left, by_key.values()):
        if steps[resource.key].action is Action.DELETE:
            steps[resource.key] = Step(resource, Action.KEEP, reason=NEEDED)
    return [steps[key] for key in by_key]


def _failure(
    by_key: dict[str, Resource],
    failed: dict[str, Exception],
    context: DeployContext,
    problem: str,
    hint: str | None,
) -> DeployError:
    """Return the error of a walk. A login to AWS that expired explains every other failure as well:
    without it the lease is not renewed either, and nothing more is changed.
    """
    if expired := next(filter(is_expired, failed.values()), None):
        return DeployError(
            f"the session with AWS expired; {len(failed)} resources and those that need them are "
            "not done, what was created stays",
            hint=login_hint(expired, context.deploy.profile),
        )
    lines = [f"{by_key[key].title}: {_reason(error)}" for key, error in failed.items()]
    return DeployError(f"{len(failed)} resources {problem}:\n  " + "\n  ".join(lines), hint=hint)


def converge(resource: Resource, context: DeployContext, report: Report) -> Live:
    """Create or update one resource whose needs exist, and wait until it can be used.

    :raises TopicbergError: it could not be done
    :raises WaitingError: it cannot be created yet, and nothing is wrong
    """
    if any(need in context.fresh for need in resource.needs):
        context.fresh.add(resource.key)
    live = look(resource, context)
    made = _Made.PART
    if live is None:
        if reason := resource.waits(context):
            raise WaitingError(reason)
        if not resource.built_in:
            minutes = resource.usual_minutes
            report(resource, f"creating, about {minutes:g} min" if minutes else "creating")
            made = _make_recorded(resource, context)
            context.fresh.add(resource.key)
        seconds = 600.0 if resource.built_in else 120.0
        live = _appeared(resource, context, seconds)
        is_created = not resource.built_in and made is not _Made.ADOPTED
        report(resource, "created" if is_created else "is there")
    _record(resource, context, live)
    if made is not _Made.WHOLE and (changes := difference(resource, context, live)):
        live = _correct(resource, context, live, changes, report)
        context.fresh.add(resource.key)
    if resource.settles:
        if resource.key in MEASURED and resource.key in context.fresh:
            context.waiting_since.setdefault(resource.key, time.monotonic())
        resource.settle(context, live)
        live = _look_again(resource, context)
    if since := context.waiting_since.pop(resource.key, None):
        context.record.put_wait(resource.key, time.monotonic() - since)
    if remark := resource.remark(context, live):
        report(resource, remark)
    return live


def _appeared(resource: Resource, context: DeployContext, seconds: float) -> Live:
    return poll(lambda: look(resource, context), f"{resource.title} appears", seconds)


def _look_again(resource: Resource, context: DeployContext) -> Live:
    live = look(resource, context)
    if live is None:
        raise TopicbergError(f"{resource.title} existed and is now missing")
    return live


def _record(resource: Resource, context: DeployContext, live: Live) -> None:
    """Record the id of what this process created, or one that was killed when it had."""
    if owns(resource, context, live) and context.record.get(resource.key) == BEGUN:
        context.record.put(resource.key, identity(resource, context, live))


class _Made(Enum):
    """What became of a request to create something."""

    WHOLE = "created by it"
    PART = "there, maybe without its second part"
    ADOPTED = "created by another administrator at that moment"


def _make_recorded(resource: Resource, context: DeployContext) -> _Made:
    """Record it first: a process that is killed afterwards leaves nothing of unknown origin.

    What goes with something that is recorded needs no record of its own, nor does what no delete
    takes. What was refused was not created, and whoever creates it now is another administrator.
    """
    if _is_inside_ours(resource, context) or not resource.is_ours(context):
        return _make(resource, context)
    before = context.record.get(resource.key)
    context.record.put(resource.key, BEGUN)
    try:
        made = _make(resource, context, was_begun=before == BEGUN)
    except HiddenError as error:
        if not error.may_be_ours:
            _restore(resource, context, before)
        raise
    except Exception as error:
        if not means(error, UNANSWERED):
            with suppress(Exception):  # the error that made it fail is reported
                if look(resource, context) is None:
                    context.record.drop(resource.key)
        raise
    if made is _Made.ADOPTED:
        _restore(resource, context, before)
    return made


def _restore(resource: Resource, context: DeployContext, before: str | None) -> None:
    """Record what was recorded before a request found that the object exists: one that is recorded
    by its id may be hidden from who deploys now, and not from who created it.
    """
    if before in (None, BEGUN):
        context.record.drop(resource.key)
    else:
        context.record.put(resource.key, before)


def _make(resource: Resource, context: DeployContext, *, was_begun: bool = False) -> _Made:
    """Create it; after an unclear response, find out first whether that worked.

    What exists after an error may lack its second part. A 403 or 404 passes when it is about a
    permission or an object that is not known everywhere yet; a 409 may be about what an earlier,
    unanswered request created. If there was none, another administrator created it.

    :param was_begun: an earlier process may have created it
    :raises HiddenError: it exists, and cannot be seen
    """
    attempt, is_begun = 0, False
    while True:
        attempt += 1
        try:
            resource.create(context)
            return _Made.WHOLE if resource.is_created_whole else _Made.PART
        except Exception as error:
            made = means(error, EXISTS)
            if attempt == TRIES or not (made or means(error, *PASSES)):
                raise
            is_begun = is_begun or not made or was_repeated(error)
            outcome = _Made.PART if is_begun or was_begun else _Made.ADOPTED
            context.sleep(min(30.0, 2.0 ** (attempt - 1)))
            if look(resource, context) is not None:
                return outcome
            if isinstance(error, UncertainError) and not resource.unique:
                with suppress(DeadlineExceededError):
                    context.poll(lambda: look(resource, context), "", UNCERTAIN_SECONDS)
                    return outcome
            if made and attempt > 4:
                hidden = HiddenError(
                    f"{resource.title} exists, and this login does not see it: {_reason(error)}",
                    hint="let its owner grant the login access to it, or choose another prefix",
                )
                hidden.may_be_ours = is_begun
                raise hidden from error


def _correct(
    resource: Resource, context: DeployContext, live: Live, changes: Changes, report: Report
) -> Live:
    if not set(changes) & resource.replaced_for:
        report(resource, f"changing {', '.join(changes)}")
        _update(resource, context, live, changes)
        report(resource, "changed")
        return _look_again(resource, context)
    if resource.holds_data:
        fields = ", ".join(sorted(set(changes) & resource.replaced_for))
        raise CannotChangeError(
            f"{resource.title} differs in {fields}, which cannot be changed: it would have to be "
            "deleted with its data",
            hint="set the present value, or run `topicberg deploy delete` first",
        )
    report(resource, "replacing")
    remove(resource, context, live)
    context.record.drop(resource.key)
    _make_recorded(resource, context)
    report(resource, "replaced")
    live = _appeared(resource, context, 120)
    _record(resource, context, live)
    return live


def _update(resource: Resource, context: DeployContext, live: Live, changes: Changes) -> None:
    """Change a resource; before a retry, read what it is now and what is still different."""

    is_repeated = False

    def update() -> None:
        nonlocal live, changes, is_repeated
        if is_repeated:
            live = look(resource, context) or live
            changes = difference(resource, context, live)
        is_repeated = True
        resource.update(context, live, changes)

    retry(
        update,
        TRIES,
        on=lambda error: means(error, EXISTS, *PASSES),
        wait=wait_exponential(multiplier=2, max=30),
        sleep=context.sleep,
    )


def create(resources: Iterable[Resource], context: DeployContext, report: Report) -> None:
    """Converge every resource, those that do not need each other at the same time.

    Of a part of the graph, the rest must have been looked at before.

    :raises DeployError: names what failed; what needs it was not tried
    """
    graph = list(resources)
    context.record.load()
    _clear(graph, context, report)
    by_key = {resource.key: resource for resource in graph if resource.wanted}
    if failed := _walk(by_key, lambda resource: _create(resource, context, report)):
        hint = "fix the cause and run the command again: it resumes where it stopped"
        raise _failure(by_key, failed, context, "could not be created", hint)


def _create(resource: Resource, context: DeployContext, report: Report) -> None:
    """Converge one resource; one that waits, or needs one that waits, is left for later."""
    try:
        with report_progress(partial(report, resource), resource.usual_minutes):
            ensure(resource, context, report)
    except WaitingError as waiting:
        reason = str(waiting)
    except MissingError as error:
        if error.key not in context.waiting:
            raise
        reason = context.waiting[error.key]
    else:
        return
    context.waiting[resource.key] = reason
    report(resource, f"waits ({reason})")


def _clear(graph: list[Resource], context: DeployContext, report: Report) -> None:
    """Delete what is not wanted any more, each after all that needs it, or raise DeployError."""
    unwanted = [resource for resource in graph if not resource.wanted]
    if not unwanted:
        return
    steps = plan(with_needs(unwanted, graph), context)
    dead = [step.resource for step in steps if step.action is Action.DELETE]
    obsolete: list[Found] = [(resource, context.live[resource.key]) for resource in reversed(dead)]
    if left := delete(obsolete, context, report):
        lines = [f"{title}: {reason}" for title, reason in left.items()]
        raise DeployError(f"{len(left)} resources are left:\n  " + "\n  ".join(lines))


def with_needs(chosen: Iterable[Resource], graph: Iterable[Resource]) -> list[Resource]:
    """The chosen ones and all that they need."""
    by_key = {resource.key: resource for resource in graph}
    needed: dict[str, Resource] = {}
    waiting = [*chosen]
    while waiting:
        resource = waiting.pop()
        if resource.key not in needed:
            needed[resource.key] = resource
            waiting += [by_key[key] for key in resource.needs if key in by_key]
    return list(needed.values())


def ensure(resource: Resource, context: DeployContext, report: Report) -> Live:
    """Converge, again while a new key or a new permission is not known everywhere yet.

    What a vendor refuses is tried again only if the resource, or something that it needs, was
    created or changed by this process: otherwise another attempt gets the same answer.
    """
    for pause in PAUSES:
        try:
            return converge(resource, context, report)
        except Exception as error:
            refused = means(error, UNACCEPTED) and resource.key in context.fresh
            if not (refused or means(error, *PASSES)):
                raise
            logger.info("%s: %s; next attempt in %.0f s", resource.title, error, pause)
            if refused:
                context.waiting_since.setdefault(resource.key, time.monotonic())
                report(resource, f"next attempt in {pause:.0f} s, refused: {_reason(error)}")
            context.sleep(pause)
    return converge(resource, context, report)


def _walk(by_key: dict[str, Resource], act: Callable[[Resource], object]) -> dict[str, Exception]:
    """Act on each resource after all that it needs. Returns key → what went wrong."""
    sorter = TopologicalSorter(
        {key: [need for need in by_key[key].needs if need in by_key] for key in by_key}
    )
    sorter.prepare()
    failed: dict[str, Exception] = {}
    running: dict[Future[object], str] = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        while True:
            running |= {pool.submit(act, by_key[key]): key for key in sorter.get_ready()}
            if not running:
                return failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key = running.pop(future)
                try:
                    future.result()
                except Exception as error:
                    failed[key] = error
                else:
                    sorter.done(key)


def _reason(error: Exception) -> str:
    if is_expired(error):
        return "the session with AWS expired"
    if isinstance(error, TopicbergError):
        return str(error)
    if isinstance(error, MissingError):
        return f"needs {error.key}, which is not there"
    return f"{type(error).__name__}: {error}"


Found = tuple[Resource, Live | str]
"""What there is, or why it cannot be seen."""


def existing(resources: Iterable[Resource], context: DeployContext, report: Report) -> list[Found]:
    """What there is to delete, in the order of deletion.

    A key without which something cannot be read, and so not deleted, is created again, and deleted
    with the rest. What is not ours to delete need not be seen; what ``deploy create`` did not
    create is left, and is in :attr:`~.kept` of the context. What it created and is not found is in
    :attr:`~.unseen`.
    """
    context.record.load()
    by_key = {resource.key: resource for resource in in_order(resources)}
    seen: dict[str, Live | str] = {}
    one_at_a_time = threading.Lock()

    def reveal(missing: str) -> None:
        with one_at_a_time:
            if missing not in context.live or not context.live[missing].facts.get("key"):
                seen[missing] = converge(by_key[missing], context, report)

    def look_at(resource: Resource) -> None:
        may_be_ours = resource.is_ours(context) and may_own(resource, context)
        try:
            try:
                live = look(resource, context)
            except MissingError as error:
                if error.key in resource.within:
                    return
                if not may_be_ours:
                    raise
                reveal(error.key)
                live = look(resource, context)
            if live is None:
                if context.record.get(resource.key) is not None:
                    context.unseen[resource.key] = resource.title
            elif may_be_ours and owns(resource, context, live):
                seen[resource.key] = live
            elif resource.is_ours(context):
                context.kept[resource.key] = resource.title
        except Exception as error:  # the others are still to be deleted
            if may_be_ours:  # without its key's owner, it goes with what it is inside
                goes = isinstance(error, MissingError) and _is_inside_ours(resource, context)
            else:
                goes = isinstance(error, MissingError | CredentialsError | GoneError)
            if not goes:
                seen[resource.key] = f"cannot be seen: {_reason(error)}"

    _walk(by_key, look_at)
    return [(by_key[key], seen[key]) for key in reversed(by_key) if key in seen]


def remove(resource: Resource, context: DeployContext, live: Live) -> None:
    """Delete it and wait until it no longer exists.

    :raises TopicbergError: it was refused, or takes too long
    """

    def is_gone() -> bool:
        try:
            return look(resource, context) is None
        except Exception as error:
            if not means(error, UNANSWERED):
                raise
            return False

    for attempt in range(1, CONFLICT_TRIES + 1):
        try:
            resource.delete(context, live)
            break
        except Exception as error:
            # A conflict: something that used it still exists somewhere.
            conflict = isinstance(error, ConflictError)
            if not (conflict or means(error, MISSING, *PASSES)):
                if was_repeated(error) and is_gone():  # the first request deleted it
                    return
                raise
            if attempt >= (CONFLICT_TRIES if conflict else TRIES):
                if means(error, MISSING):
                    break
                raise
            context.sleep(min(30.0, 2.0 ** (attempt - 1)))
            if is_gone():
                return

    poll(is_gone, f"{resource.title} is gone", GONE_SECONDS)


def delete(
    existing_resources: list[Found], context: DeployContext, report: Report
) -> dict[str, str]:
    """Delete what :func:`existing` found, each after all that needs it, and forget what it did not
    find: who creates that from now on is another administrator.

    Goes on after a failure, but keeps what the failed resource needs: without it the next run
    could not delete it either.

    :returns: title → why it is left
    """
    left: dict[str, str] = {}
    kept: dict[str, str] = {}
    for key in context.unseen:
        context.record.drop(key)

    def leave(resource: Resource, reason: str) -> None:
        left[resource.title] = reason
        for key in resource.needs:
            kept.setdefault(key, resource.title)

    for resource, live in existing_resources:
        if resource.key in kept:
            leave(resource, f"{kept[resource.key]} is left and needs it")
        elif isinstance(live, str):
            left[resource.title] = live
        else:
            report(resource, "deleting")
            try:
                with report_progress(partial(report, resource), 0):
                    remove(resource, context, live)
                context.record.drop(resource.key)
                report(resource, "deleted")
            except Exception as error:  # whatever it is, the others are still to be deleted
                leave(resource, _reason(error))
                report(resource, "left")
    return left
