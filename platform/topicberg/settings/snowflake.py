"""Snowflake."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from topicberg.settings.confluent import ConfluentSettings
from topicberg.settings.environment import Concern, FromJson

_BYTE = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}(/(3[0-2]|[12]?\d))?"


class SnowflakeSettings(ConfluentSettings):
    """How Snowflake finds and reads the tables, and who owns what is in it."""

    concern = Concern.SNOWFLAKE

    snowflake_catalog: Literal["glue", "glue_rest", "open_catalog", "iceberg_rest"] = Field(
        default="glue",
        description="the catalog in which Snowflake finds the topics' tables: Glue, Glue's Iceberg "
        "REST API, Snowflake Open Catalog, or another Iceberg REST catalog",
    )
    snowflake_refresh_seconds: int = Field(
        default_factory=lambda fields: 300 if fields["deployment"] == "cloud" else 30,
        ge=30,
        le=86400,
        description="how often Snowflake asks the catalog for new tables and snapshots; it takes "
        "no shorter interval than 30, and charges for each; Confluent's Tableflow publishes about "
        "every five minutes",
    )
    snowflake_owner_role: str | None = Field(
        default=None,
        pattern=r"^[A-Z_][A-Z0-9_$]*$",
        description="the role of Snowflake that creates and owns everything, in place of "
        "ACCOUNTADMIN, SECURITYADMIN and SYSADMIN",
    )
    snowflake_tags: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^\w+\.\w+\.\w+$")],
            Annotated[str, Field(min_length=1, max_length=256)],
        ],
        *FromJson,
    ] = Field(
        default_factory=dict,
        description="tags of Snowflake, which exist, and their values on what `topicberg deploy` "
        'creates there, as JSON: {"GOVERNANCE.TAGS.COST_CENTER": "data"}',
    )
    snowflake_allowed_ips: str = Field(
        default="",
        pattern=rf"^({IPV4}(,{IPV4})*)?$",
        description="addresses and networks (IPv4, separated by commas) from which the service "
        "user may log in; `topicberg deploy` creates a network policy for it",
    )
    snowflake_linked_database: bool = Field(
        default_factory=lambda fields: fields["deployment"] == "cloud",
        description="Snowflake finds the topics' tables by itself, in a catalog-linked database; "
        "without it, `topicberg deploy` and the assets create each of them; a cloud deployment "
        "that was created without it stays without it by default",
    )
    snowflake_privatelink: bool = Field(
        default=False,
        description="Snowflake reaches S3 and the catalog by AWS PrivateLink, over endpoints that "
        "its account has already; needs another TOPICBERG_SNOWFLAKE_CATALOG than glue",
    )
    snowflake_vended_credentials: bool = Field(
        default_factory=lambda fields: (
            fields["snowflake_catalog"] in ("open_catalog", "iceberg_rest")
        ),
        description="the linked database reads S3 with credentials of the catalog, not by an "
        "external volume; Glue vends those of AWS Lake Formation only",
    )

    @property
    def snowflake_namespace(self) -> str:
        """The same in the catalog in which Snowflake finds the tables: of catalogs that Tableflow
        does not publish to, its own one, which only has the cluster's id.
        """
        own = self.snowflake_catalog == "iceberg_rest" and not self.own_engine
        return self.cluster_id if own else self.topics_namespace

    @property
    def topics_in_glue(self) -> bool:
        """Whether Snowflake finds the topics' tables in Glue, not in another REST catalog."""
        return self.snowflake_catalog in ("glue", "glue_rest")

    @property
    def has_topics_catalog(self) -> bool:
        """Whether the topics' tables are in another catalog than AWS Glue: Tableflow publishes the
        tables of a cluster to one catalog.
        """
        return self.snowflake_catalog == "open_catalog" and not self.own_engine

    def snowflake_name(self, kind: str) -> str:
        """Return the name of a Snowflake object, e.g. ``snowflake_name("volume")``."""
        return f"{self.prefix}_{kind}".upper()
