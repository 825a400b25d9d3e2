"""An EMR Serverless application that computes the derived tables, and the code that its jobs run.

It costs nothing while no job runs: it has no pre-initialized capacity, starts with a job run and
stops when it is idle. Its name is not unique for AWS: of several, the one with the deployment's tag
is taken.
https://docs.aws.amazon.com/emr-serverless/latest/APIReference/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.aws import archive
from topicberg_deploy.aws.bucket import CODE, JOBS, drop, pages
from topicberg_deploy.aws.glue import pipelines
from topicberg_deploy.aws.iam import (
    GLUE_READS,
    WRITES_KEY,
    Document,
    allow,
    allow_glue,
    document,
    key_use,
)
from topicberg_deploy.costs import JOB_HOURS, PRICES, QUOTAS, Cost
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, Resource

APPLICATION = "aws/emr/application"
CODE_KEY = "aws/emr/code"
ROLE = "aws/role/emr"
POLICY = "aws/policy/emr"
IDLE_MINUTES = 15
GB_PER_VCPU = 4
WORKER_VCPU, WORKER_MEMORY = 2, 6
"""Of the driver and of each executor; Spark adds a tenth of the memory."""
WORKERS = 4
"""Of one job run, at most: its driver, and three executors."""
STATE_SECONDS = 600.0
"""How long an application may take to start or to stop, and a job run to be cancelled."""
ACTIVE = ["SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING", "QUEUED"]
PYTHON = "/usr/bin/python3.11"
"""Of the release's image: the code is written for it."""


def emr_trust(context: DeployContext) -> Document:
    """Let EMR Serverless take the role, for job runs of this application only."""
    arn = context.need(APPLICATION).facts["arn"]
    return document(
        {
            "Effect": "Allow",
            "Principal": {"Service": "emr-serverless.amazonaws.com"},
            "Action": "sts:AssumeRole",
            "Condition": {
                "StringEquals": {"aws:SourceAccount": context.aws.account},
                "ArnLike": {"aws:SourceArn": [arn, f"{arn}/*"]},
            },
        }
    )


def emr_policy(context: DeployContext) -> Document:
    """Read the topics' tables, write the derived ones in S3 and Glue, and write logs."""
    topics, derived, compute = (
        f"arn:aws:s3:::{name}"
        for name in (context.aws.bucket, context.aws.derived_bucket, context.aws.compute_bucket)
    )
    databases = [context.names.namespace(pipeline) for pipeline in pipelines(context.specs)]
    writes = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    return document(
        # Without ListBucket, S3 answers 403 instead of 404 for a key that does not exist.
        allow(["s3:GetBucketLocation", "s3:ListBucket"], [topics, derived, compute]),
        allow(["s3:GetObject"], f"{topics}/*"),
        allow(writes, f"{derived}/*"),
        allow(["s3:GetObject"], f"{compute}/{CODE}*"),
        allow(["s3:PutObject"], f"{compute}/{JOBS}*"),
        *allow_glue(context, GLUE_READS, context.namespace),
        *allow_glue(context, [*GLUE_READS, "glue:CreateTable", "glue:UpdateTable"], *databases),
        *key_use(context.config, WRITES_KEY),
    )


def runtime_settings(context: DeployContext) -> dict[str, str] | None:
    """Return the settings with which Dagster starts job runs; None: there is no application.

    See :class:`topicberg.settings.models.EmrSettings`.
    """
    code = context.live.get(CODE_KEY)
    has_code = code is not None or context.config.emr.image is not None
    if not has_code or not {APPLICATION, ROLE} <= context.live.keys():
        return None
    executors = min(WORKERS, context.config.emr.max_vcpu // WORKER_VCPU) - 1
    properties = {
        **{f"spark.{kind}.cores": str(WORKER_VCPU) for kind in ("driver", "executor")},
        **{f"spark.{kind}.memory": f"{WORKER_MEMORY}g" for kind in ("driver", "executor")},
        "spark.executor.instances": "1",
        "spark.dynamicAllocation.maxExecutors": str(executors),
    }
    drivers = {"PYSPARK_DRIVER_PYTHON": PYTHON, "PYSPARK_PYTHON": PYTHON}
    if code is None:
        entry, place = f"local://{archive.IN_IMAGE}/{archive.ENTRY_POINT}", archive.IN_IMAGE
    else:
        folder, place = f"s3://{context.aws.compute_bucket}/{CODE}{code.fields['version']}", "."
        entry = f"{folder}/{archive.ENTRY_POINT}"
        properties["spark.archives"] = f"{folder}/{archive.ARCHIVE}#{archive.UNPACKED}"
    workers = {"PYSPARK_PYTHON": PYTHON, "PYTHONPATH": archive.python_path(place)}
    properties |= {f"spark.emr-serverless.driverEnv.{k}": text for k, text in drivers.items()}
    properties |= {f"spark.executorEnv.{k}": text for k, text in workers.items()}
    return {
        "application_id": context.need(APPLICATION).id,
        "execution_role_arn": context.need(ROLE).id,
        "entry_point": entry,
        "log_uri": f"s3://{context.aws.compute_bucket}/{JOBS}",
        "spark_submit_parameters": " ".join(
            f"--conf {name}={text}" for name, text in properties.items()
        ),
    }


@dataclass(frozen=True)
class UploadedCode(Resource):
    """What a job run executes: this project and its dependencies, in a folder named by its hash."""

    kind = "code of the EMR Serverless jobs"
    is_part = True

    def lasting_id(self, live: Live) -> str:
        """Return nothing but its bucket's id: each version has another folder."""
        return self.key

    def find(self, context: DeployContext) -> Live | None:
        """Return the newest one that is complete: the entry point is uploaded last."""
        s3 = context.aws.client("s3")
        uploads = [
            (s3_object["LastModified"], s3_object["Key"].split("/")[1])
            for some in pages(s3, context.aws.compute_bucket, CODE)
            for s3_object in some
            if s3_object["Key"].endswith(f"/{archive.ENTRY_POINT}")
        ]
        if not uploads:
            return None
        versions = {version for _, version in uploads}
        wanted = archive.version(context.config.project_root)
        newest = wanted if wanted in versions else max(uploads)[1]
        return Live(f"s3://{context.aws.compute_bucket}/{CODE}{newest}/", {"version": newest})

    def desired(self, context: DeployContext) -> Fields:
        return {"version": archive.version(context.config.project_root)}

    def create(self, context: DeployContext) -> None:
        """Upload it. Earlier versions stay, since a job run may use one."""
        root, bucket = context.config.project_root, context.aws.compute_bucket
        s3, folder = context.aws.client("s3"), f"{CODE}{archive.version(root)}"
        with archive.built(root) as path, path.open("rb") as file:
            s3.put_object(Bucket=bucket, Key=f"{folder}/{archive.ARCHIVE}", Body=file)
        script = archive.entry_point().encode()
        s3.put_object(Bucket=bucket, Key=f"{folder}/{archive.ENTRY_POINT}", Body=script)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        self.create(context)

    def delete(self, context: DeployContext, live: Live) -> None:
        s3 = context.aws.client("s3")
        for some in pages(s3, context.aws.compute_bucket, CODE):
            drop(s3, context.aws.compute_bucket, some)


@dataclass(frozen=True)
class Application(Resource):
    """The application, of type Spark."""

    kind = "EMR Serverless application"
    quota = QUOTAS["vCPU of EMR Serverless"]
    usual_minutes = 2
    unique = False

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        run = min(WORKERS * WORKER_VCPU, config.emr.max_vcpu)
        hourly = run * PRICES["vcpu"] + run * GB_PER_VCPU * PRICES["memory"]
        basis = f"an hour of job runs a day at ${hourly:.2f}; nothing while idle"
        return Cost(hourly * JOB_HOURS, basis)

    def quota_units(self, config: Settings) -> int:
        return config.emr.max_vcpu

    def find(self, context: DeployContext) -> Live | None:
        applications = self._all(context)
        if not applications:
            return None
        application = applications[0]

        def part(of: str) -> dict[str, Any]:
            return dict(application.get(of, {}))

        # AWS may add a limit of disks of its own, which Terraform's provider takes for computed.
        # https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_MaximumAllowedResources.html
        capacity, stop = part("maximumCapacity"), part("autoStopConfiguration")
        monitoring = part("monitoringConfiguration")
        fields = {
            "release": application["releaseLabel"],
            "architecture": application.get("architecture"),
            "maximum_capacity": {size: text for size, text in capacity.items() if size != "disk"},
            "auto_start": part("autoStartConfiguration").get("enabled"),
            "auto_stop_minutes": stop.get("idleTimeoutMinutes") if stop.get("enabled") else None,
            "image": part("imageConfiguration").get("imageUri"),
            "network": _network(part("networkConfiguration")),
            "log_uri": monitoring.get("s3MonitoringConfiguration", {}).get("logUri"),
            "tags": {key: text for key, text in part("tags").items() if key in context.aws.tags},
        }
        ours = [other for other in applications[1:] if _is_tagged(other, context.names.tag)]
        others = [other["applicationId"] for other in ours]
        facts = {"arn": application["arn"], "others": others}
        return Live(application["applicationId"], fields, facts)

    def _all(self, context: DeployContext) -> list[dict[str, Any]]:
        """Return the applications of this name that are not deleted, those with our tag first."""
        emr, tag = context.aws.client("emr-serverless"), context.names.tag
        applications = (
            emr.get_application(applicationId=application["id"])["application"]
            for application in every(emr, "list_applications", "applications")
            if application.get("name") == self.name and application["state"] != "TERMINATED"
        )
        return sorted(
            applications,
            key=lambda app: (not _is_tagged(app, tag), app["createdAt"], app["applicationId"]),
        )

    def desired(self, context: DeployContext) -> Fields:
        vcpu, image = context.config.emr.max_vcpu, context.config.emr.image
        network = _wanted_network(context.config)
        return {
            "release": context.config.emr.release,
            "architecture": "X86_64",
            "maximum_capacity": {"cpu": f"{vcpu} vCPU", "memory": f"{vcpu * GB_PER_VCPU} GB"},
            "auto_start": True,
            "auto_stop_minutes": IDLE_MINUTES,
            "log_uri": f"s3://{context.aws.compute_bucket}/{JOBS}",
            "tags": context.aws.tags,
            # Neither can be taken away from an application, so none is not compared.
            **({"image": image} if image else {}),
            **({"network": network} if network else {}),
        }

    def _request(self, context: DeployContext) -> dict[str, Any]:
        wanted = self.desired(context)
        image, network = wanted.get("image"), wanted.get("network")
        return {
            "releaseLabel": wanted["release"],
            "architecture": wanted["architecture"],
            "maximumCapacity": wanted["maximum_capacity"],
            "autoStartConfiguration": {"enabled": True},
            "autoStopConfiguration": {"enabled": True, "idleTimeoutMinutes": IDLE_MINUTES},
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": wanted["log_uri"]}},
            **({"imageConfiguration": {"imageUri": image}} if image else {}),
            **({"networkConfiguration": network} if network else {}),
        }

    def create(self, context: DeployContext) -> None:
        context.aws.client("emr-serverless").create_application(
            name=self.name, type="SPARK", tags=context.aws.tags, **self._request(context)
        )

    def settle(self, context: DeployContext, live: Live) -> None:
        """Wait until it can take job runs; the first one starts it."""
        self._wait(context, live.id, "CREATED", "STARTED", "STOPPED")

    def orphans(self, context: DeployContext, live: Live) -> list[str]:
        return list(live.facts["others"])

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        emr = context.aws.client("emr-serverless")
        if "tags" in changes:
            emr.tag_resource(resourceArn=live.facts["arn"], tags=context.aws.tags)
        for other in live.facts["others"] if "unused" in changes else []:
            self._end(context, other)
        if not changes.keys() - {"tags", "unused"}:
            return
        if running := _job_runs(context, live.id):
            raise TopicbergError(
                f"{self.title} cannot be changed while it has {len(running)} job runs: "
                f"{', '.join(running[:5])}",
                hint="run the command again when they have ended, or cancel their runs in Dagster",
            )
        self._stop(context, live.id)
        emr.update_application(applicationId=live.id, **self._request(context))

    def delete(self, context: DeployContext, live: Live) -> None:
        for identity in (live.id, *live.facts["others"]):
            self._end(context, identity)

    def _end(self, context: DeployContext, identity: str) -> None:
        """Delete an application; AWS demands that it is stopped, and stops none with job runs."""
        emr = context.aws.client("emr-serverless")
        for run in _job_runs(context, identity):
            emr.cancel_job_run(applicationId=identity, jobRunId=run)
        condition = f"{self.title} has no job runs"
        context.poll(lambda: not _job_runs(context, identity), condition, STATE_SECONDS)
        self._stop(context, identity)
        emr.delete_application(applicationId=identity)

    def _stop(self, context: DeployContext, identity: str) -> None:
        emr = context.aws.client("emr-serverless")
        if self._wait(context, identity, "CREATED", "STARTED", "STOPPED", "STOPPING") == "STARTED":
            emr.stop_application(applicationId=identity)
        self._wait(context, identity, "CREATED", "STOPPED")

    def _wait(self, context: DeployContext, identity: str, *states: str) -> str:
        emr = context.aws.client("emr-serverless")

        def reached() -> str | None:
            application = emr.get_application(applicationId=identity)["application"]
            state: str = application["state"]
            if state == "TERMINATED":
                raise TopicbergError(
                    f"{self.title} {identity} is terminated: {application.get('stateDetails', '')}",
                    hint="run `topicberg deploy create` to create it again",
                )
            return state if state in states else None

        return context.poll(reached, f"{self.title} is {' or '.join(states)}", STATE_SECONDS)


def _is_tagged(application: dict[str, Any], tag: tuple[str, str]) -> bool:
    return tag in application.get("tags", {}).items()


def _wanted_network(config: Settings) -> dict[str, list[str]]:
    """Return the network of job runs; empty: they reach AWS only.

    https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_NetworkConfiguration.html
    """
    if not config.emr.subnet_ids:
        return {}
    subnets, groups = config.emr.subnet_ids, config.emr.security_group_ids
    return _network({"subnetIds": subnets.split(","), "securityGroupIds": groups.split(",")})


def _network(answered: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: sorted(listed) for name, listed in sorted(answered.items())}


def _job_runs(context: DeployContext, identity: str) -> list[str]:
    """Return the ids of the job runs that have not ended."""
    emr = context.aws.client("emr-serverless")
    runs = every(emr, "list_job_runs", "jobRuns", applicationId=identity, states=ACTIVE)
    return [run["id"] for run in runs]
