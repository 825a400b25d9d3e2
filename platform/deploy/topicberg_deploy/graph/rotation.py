"""The rotation of keys, which is checked every night."""

import dagster as dg

from topicberg.dagster.executor import EXECUTOR
from topicberg.orchestration.assets.tables import KIND
from topicberg.settings import Settings
from topicberg_deploy.context import open_context
from topicberg_deploy.platform import resources

AT = "17 3 * * *"
WAIT_SECONDS = 30 * 60.0


@dg.op(retry_policy=dg.RetryPolicy(max_retries=2, delay=300))
def rotate_due_keys(context: dg.OpExecutionContext) -> int:
    """Rotate what ``TOPICBERG_DAY_COUNT`` says is due. Returns how many keys were."""
    from topicberg_deploy.lock import exclusive
    from topicberg_deploy.rotate import rotate

    deployment = open_context(Settings())
    graph = resources(deployment.config, deployment.specs)
    with exclusive(deployment, WAIT_SECONDS):
        return rotate(graph, deployment, context.log.info)


@dg.job(
    tags={KIND: "rotation"},
    executor_def=EXECUTOR,
    description="Rotates every key that is due; the keys before stay alive for a period.",
)
def rotate_keys() -> None:
    rotate_due_keys()


def rotation_schedule(config: Settings) -> dg.ScheduleDefinition:
    """Every night; in the local deployment it is there, and off."""
    in_cloud = config.deployment == "cloud"
    status = dg.DefaultScheduleStatus.RUNNING if in_cloud else dg.DefaultScheduleStatus.STOPPED
    return dg.ScheduleDefinition(
        job=rotate_keys, cron_schedule=AT, execution_timezone="UTC", default_status=status
    )
