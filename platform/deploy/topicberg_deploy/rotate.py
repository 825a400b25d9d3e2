"""Rotation of every key: the newest working one is active, the one before stays for a period.

A rotation makes a key, stores it, waits until it works everywhere, publishes it with one call, and
only then deletes what is old enough. Killed anywhere, the next one finishes it: a stored key that
was not published is used, a key that was not stored is deleted.

Old enough is a key when more than the number to retain are newer, *and* the key that took its place
has existed for a whole period. So rotating manually, however often, never deletes a key that a
consumer may still use. Snowflake has two slots for a user's keys and no more: there a third
rotation within one period has to take the slot of the oldest key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from topicberg.clients import rsa
from topicberg.clients.answers import AnswerError
from topicberg.clients.confluent import UncertainError
from topicberg.clients.secrets import ApiKey, Version, active_slot
from topicberg.errors import TopicbergError
from topicberg.errors.aws import is_expired, login_hint
from topicberg_deploy.confluent.keys import RotatingKey
from topicberg_deploy.engine import TRIES, ensure, look, plan, with_needs
from topicberg_deploy.resource import Action, DeployContext, Resource
from topicberg_deploy.snowflake.principals import User, UserKeys

Tell = Callable[[str], None]


def _quiet(*_: object) -> None:
    """A report that is not shown."""


def decide(
    keys: Mapping[str, datetime],
    now: datetime,
    period: timedelta,
    retain: int,
    *,
    force: bool = False,
) -> tuple[bool, list[str]]:
    """Return whether a new key of one kind is due, and the ids of those to delete once the newest
    one is published.

    :param keys: id → when it was created, of those that are alive; there is at least one
    :param retain: how many stay alive at least, the active one included
    """
    newest_first = sorted(keys.items(), key=lambda key: key[1], reverse=True)
    is_due = force or newest_first[0][1] + period <= now
    after = [("", now), *newest_first] if is_due else newest_first
    return is_due, [
        key
        for number, (key, _) in enumerate(after)
        if number >= retain and after[number - 1][1] + period <= now
    ]


def rotate(
    graph: Sequence[Resource],
    context: DeployContext,
    tell: Tell,
    *,
    force: bool = False,
    now: datetime | None = None,
) -> int:
    """Rotate every key that is due, or all with ``force``. Returns how many were.

    :raises TopicbergError: some could not be rotated; their active keys still work
    """
    moment = now or datetime.now(UTC)
    user = next((candidate for candidate in graph if isinstance(candidate, User)), None)
    rotated, problems = 0, list[str]()
    for resource in graph:
        if not isinstance(resource, RotatingKey | UserKeys):
            continue
        chosen = [resource, user] if user and isinstance(resource, UserKeys) else [resource]
        try:
            steps = plan(with_needs(chosen, graph), context)
            if any(step.resource is resource and step.action is Action.CREATE for step in steps):
                raise TopicbergError("it does not exist", hint="run `topicberg deploy create`")
            if isinstance(resource, RotatingKey):
                rotated += _rotate_key(resource, context, tell, force=force, now=moment)
            elif user:
                rotated += _rotate_pair(resource, user, context, tell, force=force, now=moment)
        except Exception as error:  # whatever it is, the other keys are still to be rotated
            if is_expired(error):
                raise TopicbergError(
                    f"the session with AWS expired after {rotated} keys were rotated",
                    hint=login_hint(error, context.deploy.profile),
                ) from error
            problems.append(f"{resource.title}: {error}")
    if problems:
        raise TopicbergError(
            f"{len(problems)} keys could not be rotated:\n  " + "\n  ".join(problems),
            hint="run the command again; active keys still work",
        )
    return rotated


def _rotate_key(
    resource: RotatingKey, context: DeployContext, tell: Tell, *, force: bool, now: datetime
) -> bool:
    live = ensure(resource, context, lambda _, progress: tell(f"{progress}: {resource.title}"))
    period = timedelta(days=context.deploy.day_count)
    versions: list[Version] = live.facts["versions"]  # not of a key whose secret is lost
    made, known = resource.alive(context, versions), {version.label for version in versions}
    keys = {key: when for key, when in made.items() if key in known}
    retain = context.deploy.number_of_api_keys_to_retain
    is_due, revoke = decide(keys, now, period, retain, force=force)
    if is_due:
        key = _add(resource, context)
        ensure(resource, context, _quiet)
        tell(f"rotated: {resource.title}: {key.id} works and is active")
    else:
        _tell_due(tell, max(keys.values()) + period, resource)
    for old in revoke:
        resource.revoke(context, old)
        tell(f"deleted: {resource.title}: {old}")
    return is_due


def _tell_due(tell: Tell, due: datetime, resource: Resource) -> None:
    tell(f"not due before {due:%Y-%m-%d %H:%M} UTC: {resource.title}")


def _add(resource: RotatingKey, context: DeployContext) -> ApiKey:
    """Return a new key; one whose response was lost is deleted before another one is created."""
    for _ in range(TRIES):
        try:
            return resource.add(context)
        except (UncertainError, AnswerError):
            context.sleep(1.0)
            ensure(resource, context, _quiet)
    return resource.add(context)


def _rotate_pair(
    resource: UserKeys,
    user: User,
    context: DeployContext,
    tell: Tell,
    *,
    force: bool,
    now: datetime,
) -> bool:
    ensure(resource, context, _quiet)
    ensure(user, context, _quiet)  # a pair that was stored is put in, tried and published
    live = look(resource, context)
    assert live is not None  # noqa: S101  it was just converged
    due = live.facts["versions"][-1].created + timedelta(days=context.deploy.day_count)
    if not force and now < due:
        _tell_due(tell, due, resource)
        return False
    values = live.facts["values"]
    slot = 3 - active_slot(values)
    replaced = rsa.public_key(values, slot)
    pair = rsa.generate()
    context.secrets.add(resource.name, rsa.with_pair(values, slot, pair), rsa.label(pair.public))
    ensure(resource, context, _quiet)
    ensure(user, context, _quiet)
    if replaced:
        context.secrets.forget(resource.name, rsa.label(replaced))
    tell(f"rotated: {resource.title}: the pair in slot {slot} works and is active")
    return True
