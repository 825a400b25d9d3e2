"""What the requests of ``/tableflow/v1/tableflow-topics`` may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from topicberg_local.emulators.confluent.operation import (
    Body,
    Page,
    PageInCluster,
    Reference,
    ScopedReference,
    distinct,
)

DAY_MS = 86_400_000


def _at_least(minimum: int) -> Any:
    """A number that is sent as text: int64."""

    def check(text: str) -> str:
        if not text.isdecimal() or not minimum <= int(text) < 2**63:
            raise ValueError(f"{text!r} is no whole number from {minimum}")
        return text

    return AfterValidator(check)


class Suspend(Body):
    mode: Literal["SUSPEND"]


class Skip(Body):
    mode: Literal["SKIP"]


class Log(Body):
    mode: Literal["LOG"]
    target: str = "error_log"


class Options(Body):
    """``config`` of a topic."""

    retention_ms: Annotated[str, _at_least(DAY_MS)] = str(7 * DAY_MS)
    data_retention_ms: Annotated[str, _at_least(30 * DAY_MS)] = ""
    record_failure_strategy: Literal["SUSPEND", "SKIP"] = "SUSPEND"
    error_handling: Annotated[Suspend | Skip | Log, Field(discriminator="mode")] = Suspend(
        mode="SUSPEND"
    )
    metadata_column_naming_scheme: Literal["DEFAULT", "PORTABLE"] = "DEFAULT"

    @model_validator(mode="after")
    def _one_of_two(self) -> Options:
        if {"record_failure_strategy", "error_handling"} <= self.model_fields_set:
            raise ValueError("error_handling and record_failure_strategy exclude each other")
        return self


class ByobAws(Body):
    kind: Literal["ByobAws"]
    bucket_name: str
    provider_integration_id: str


class Managed(Body):
    kind: Literal["Managed"]


Format = Literal["DELTA", "ICEBERG"]


Formats = Annotated[list[Format], Field(min_length=1), AfterValidator(distinct)]


class NewSpec(Body):
    display_name: str
    environment: Reference
    kafka_cluster: ScopedReference
    storage: Annotated[ByobAws | Managed, Field(discriminator="kind")]
    table_formats: Formats = Field(default=["ICEBERG"])
    config: Options = Options()
    suspended: bool = False

    @model_validator(mode="after")
    def _delta_in_a_bucket(self) -> NewSpec:
        """https://docs.confluent.io/cloud/current/topics/tableflow/concepts/tableflow-storage.html"""
        if isinstance(self.storage, Managed) and "DELTA" in self.table_formats:
            raise ValueError("Delta tables are not supported in Confluent Managed Storage")
        return self


class NewTable(Body):
    spec: NewSpec


class SpecChange(Body):
    environment: Reference
    kafka_cluster: ScopedReference = ScopedReference(id="-")
    table_formats: Formats = Field(default=["ICEBERG"])
    config: Options = Options()
    suspended: bool = False


class TableChange(Body):
    spec: SpecChange


class ListTables(PageInCluster):
    table_formats: list[str] = Field(default=[], alias="spec.table_formats")


class ListRegions(Page):
    cloud: str = ""
