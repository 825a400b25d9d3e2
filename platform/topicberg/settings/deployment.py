"""The project, and which deployment of it there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from topicberg.project import PREFIX, Project, project_root, read_project
from topicberg.settings.environment import Concern, EnvironmentSettings


class DeploymentSettings(EnvironmentSettings):
    """The project, its deployment, and what starts the names of its resources."""

    concern = Concern.DEPLOYMENT

    deployment: Literal["local", "cloud"] = "local"
    """The local stack, or the cloud accounts."""
    tableflow: Literal["confluent", "topicberg"] = Field(
        default="confluent",
        description="whose Tableflow writes the tables in the cloud deployment; the local stack "
        "always uses topicberg's engine",
    )
    project_root: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default_factory=project_root, description="the folder of the project"
    )
    state_dir: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default_factory=lambda given: given["project_root"] / ".topicberg",
        description="state of the local stack and of Dagster",
    )
    prefix: str = Field(
        default_factory=lambda given: (
            read_project(given["project_root"]).prefix or "tableflow_kickstarter"
        ),
        pattern=PREFIX,
        description="starts the name of every resource that topicberg creates; the longest of them "
        "is a service account's, for which Confluent allows 64 characters; by default the prefix "
        "or the name of the project",
    )

    @property
    def project(self) -> Project:
        """What the project says of itself."""
        return read_project(self.project_root)

    @property
    def topics_dir(self) -> Path:
        return self.project_root / self.project.topics

    @property
    def schemas_dir(self) -> Path:
        return self.project_root / self.project.schemas

    @property
    def own_engine(self) -> bool:
        """Whether topicberg's engine writes the tables."""
        return self.deployment == "local" or self.tableflow == "topicberg"
