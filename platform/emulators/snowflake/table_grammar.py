"""Grammar of Iceberg tables whose catalog is AWS Glue or an Iceberg REST catalog.

https://docs.snowflake.com/en/sql-reference/sql/create-iceberg-table-aws-glue,
https://docs.snowflake.com/en/sql-reference/sql/alter-iceberg-table,
https://docs.snowflake.com/en/sql-reference/sql/alter-iceberg-table-refresh and
https://docs.snowflake.com/en/sql-reference/sql/show-iceberg-tables
"""

from __future__ import annotations

from emulators.snowflake.errors import missing_options, unsupported
from emulators.snowflake.grammar import Kind, Statement
from emulators.snowflake.options import Spec, boolean, choice, reference, text
from emulators.snowflake.tokens import Stream

_TABLE = Spec(
    "ICEBERG TABLE",
    {
        "EXTERNAL_VOLUME": reference,
        "CATALOG": reference,
        "CATALOG_TABLE_NAME": text,
        "CATALOG_NAMESPACE": text,
        "REPLACE_INVALID_CHARACTERS": boolean,
        "AUTO_REFRESH": boolean,
        "COMMENT": text,
    },
)
_OTHER_CATALOGS = {
    "METADATA_FILE_PATH": "CREATE ICEBERG TABLE from files in object storage",
    "BASE_LOCATION": "CREATE ICEBERG TABLE with Snowflake or Delta files as the catalog",
}


def _create(stream: Stream, statement: Statement) -> None:
    if stream.at("("):
        raise unsupported("CREATE ICEBERG TABLE with columns (Snowflake as the catalog)")
    ahead = 0
    while (token := stream.peek(ahead)).kind != "end":
        if token.kind == "word" and token.value in _OTHER_CATALOGS:
            raise unsupported(_OTHER_CATALOGS[token.value])
        ahead += 1
    statement.properties = _TABLE.read(stream, until=("WITH", "TAG"))
    if stream.at("WITH", "TAG") or stream.at("TAG"):
        raise unsupported("tags of an Iceberg table")
    if stream.at("WITH", "CONTACT"):
        raise unsupported("contacts of an Iceberg table")
    stream.end()
    if "CATALOG_TABLE_NAME" not in statement.properties:
        raise missing_options(["CATALOG_TABLE_NAME"])


_SET = Spec(
    "ICEBERG TABLE",
    {"AUTO_REFRESH": boolean, "REPLACE_INVALID_CHARACTERS": boolean, "COMMENT": text},
)


def _alter(stream: Stream, statement: Statement) -> None:
    if stream.take("REFRESH"):
        statement.action = "REFRESH"
        if stream.peek().kind == "string":
            statement.properties = {"PATH": stream.string()}
    elif stream.take("SET"):
        statement.action = "SET"
        if stream.at("TAG"):
            raise unsupported("tags of an Iceberg table")
        statement.properties = _SET.read(stream)
        if not statement.properties:
            raise stream.unexpected()
    elif stream.peek().value in _UNSUPPORTED_ALTERS:
        raise unsupported(f"ALTER ICEBERG TABLE … {stream.peek().value}")
    else:
        raise stream.unexpected()


_UNSUPPORTED_ALTERS = (
    "ADD",
    "ALTER",
    "CLUSTER",
    "CONVERT",
    "DROP",
    "EXECUTE",
    "MODIFY",
    "RENAME",
    "RESUME",
    "SUSPEND",
    "UNSET",
)


def _describe(stream: Stream, statement: Statement) -> None:
    if stream.take("TYPE"):
        stream.expect("=")
        statement.action = choice("COLUMNS", "STAGE")(stream, "TYPE")
        if statement.action == "STAGE":
            raise unsupported("DESCRIBE ICEBERG TABLE … TYPE = STAGE")


ICEBERG_TABLE = Kind(
    "ICEBERG TABLE",
    parts=3,
    create=_create,
    alter=_alter,
    describe=_describe,
    plural="ICEBERG TABLES",
    in_account=False,
)
