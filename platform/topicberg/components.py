"""Dagster's components of a project: ``type: topicberg.Topics`` and ``type: topicberg.Topic``.

A ``defs.yaml`` with ``type: topicberg.Topics`` adds the whole graph of the project to its code
location. One with ``type: topicberg.Topic`` is the spec of a topic, with the name of its folder if
it gives none; the graph, the engine and the command line read it like a file of ``topics``.
Source: https://docs.dagster.io/guides/build/components
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import dagster as dg
from dagster.components import Scaffolder, ScaffoldRequest
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, create_model

from topicberg.dagster.snowflake import snowflake_resource
from topicberg.errors import SpecError
from topicberg.orchestration import definitions
from topicberg.project import read_project
from topicberg.topics.spec import TopicSpec

snowflake_resource()  # before Dagster imports it as one of the packages that have components


class Topics(dg.Component, dg.Model, dg.Resolvable):
    """All topics and derived tables of the project, with their checks, jobs and sensors."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return definitions(project=context.project_root)


class TopicParameters(BaseModel):
    """Parameters of ``dg scaffold defs topicberg.Topic NAME``."""

    pipeline: str = "default"
    """The group of its assets."""


class TopicScaffolder(Scaffolder[TopicParameters]):
    """Writes a topic with a schema of one field."""

    @classmethod
    def get_scaffold_params(cls) -> type[TopicParameters]:
        return TopicParameters

    def scaffold(self, request: ScaffoldRequest[TopicParameters]) -> None:
        name, root = request.target_path.name, request.project_root
        file = f"{name}.avsc"
        attributes = {
            "pipeline": request.params.pipeline,
            "partitions": 3,
            "schema": {"format": "avro", "file": file},
        }
        if root is not None:
            path = root / read_project(root).schemas / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                field = {"name": "id", "type": "long"}
                record = {"type": "record", "name": _record_name(name), "fields": [field]}
                path.write_text(json.dumps(record, indent=2) + "\n")
        scaffold_component(request, attributes)


def _record_name(topic: str) -> str:
    """Return a name that Avro allows."""
    name = "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", topic))
    return name if name[:1].isalpha() else f"Record{name}"


_Attributes: type[BaseModel] = create_model(
    "TopicAttributes", __base__=TopicSpec, name=(str | None, None)
)
"""A spec whose name may be that of its folder."""


@dg.scaffold_with(TopicScaffolder)
class Topic(dg.Component):
    """The spec of one topic; the assets are those of :class:`Topics`, which the project needs."""

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        return _Attributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Topic:
        """:raises SpecError: the project does not read specs of this folder"""
        root, defs = context.project_root, read_project(context.project_root).defs
        if defs is None or not Path(context.path).is_relative_to(root / defs):
            stated = "nothing" if defs is None else repr(defs)
            raise SpecError(
                f"{context.path}: a topic in this folder is not read: `defs` of [tool.topicberg] "
                f"is {stated}",
                hint="set `defs` in pyproject.toml to the folder of the components",
            )
        return cls()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions()
