"""The grammar of the Snowflake emulator: what is documented passes, a typo is named."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snowflake.connector.errors import ProgrammingError

from topicberg.catalogs.snowflake.names import text
from topicberg_local.emulators.snowflake import pass_through
from topicberg_local.emulators.snowflake.commands import parse
from topicberg_local.emulators.snowflake.sql import Statement, Stream, display, quote

VOLUME = """CREATE EXTERNAL VOLUME ev STORAGE_LOCATIONS = ((
  NAME = 'loc' STORAGE_PROVIDER = 'S3' STORAGE_AWS_ROLE_ARN = 'arn:aws:iam::1:role/r'
  STORAGE_BASE_URL = 's3://bucket/path/'{more})) {tail}"""
GLUE = """CREATE {replace}CATALOG INTEGRATION {exists}ci CATALOG_SOURCE = GLUE
  TABLE_FORMAT = ICEBERG GLUE_AWS_ROLE_ARN = 'arn:aws:iam::000000000000:role/r'
  GLUE_CATALOG_ID = '000000000000' {more} ENABLED = TRUE"""
REST = """CREATE CATALOG INTEGRATION ci CATALOG_SOURCE = ICEBERG_REST TABLE_FORMAT = ICEBERG
  CATALOG_NAMESPACE = 'ns' REST_CONFIG = (CATALOG_URI = 'https://c' {config})
  REST_AUTHENTICATION = ({authentication}) ENABLED = TRUE REFRESH_INTERVAL_SECONDS = 60"""
OAUTH = (
    "TYPE = OAUTH OAUTH_TOKEN_URI = 'https://t' OAUTH_CLIENT_ID = 'i' OAUTH_CLIENT_SECRET = 's' "
    "OAUTH_ALLOWED_SCOPES = ('PRINCIPAL_ROLE:ALL', 'b')"
)
TABLE = "CREATE {replace}ICEBERG TABLE {exists}db.s.t CATALOG_TABLE_NAME = 'topic' {more}"


def glue(replace: str = "", exists: str = "", more: str = "") -> str:
    return GLUE.format(replace=replace, exists=exists, more=more)


def table(more: str = "", replace: str = "", exists: str = "") -> str:
    return TABLE.format(more=more, replace=replace, exists=exists)


def volume(more: str = "", tail: str = "") -> str:
    return VOLUME.format(more=more, tail=tail)


DOCUMENTED = [
    volume(),
    volume(tail="ALLOW_WRITES = FALSE COMMENT = 'it''s \\n mine'"),
    volume(more=" STORAGE_AWS_EXTERNAL_ID = 'x' ENCRYPTION = (TYPE = 'AWS_SSE_S3')"),
    volume(more=" ENCRYPTION=(TYPE='AWS_SSE_KMS' KMS_KEY_ID='k') USE_PRIVATELINK_ENDPOINT=TRUE"),
    volume(more=" STORAGE_AWS_ACCESS_POINT_ARN = 'arn' ENCRYPTION = (TYPE = 'NONE')"),
    "ALTER EXTERNAL VOLUME IF EXISTS ev SET ALLOW_WRITES = TRUE",
    "DROP EXTERNAL VOLUME IF EXISTS ev",
    "SHOW EXTERNAL VOLUMES LIKE 'e%'",
    "DESCRIBE EXTERNAL VOLUME ev",
    'desc external volume "ev";',
    glue(),
    glue(replace="OR REPLACE ", more="GLUE_REGION = 'us-east-1' CATALOG_NAMESPACE = 'lkc-1'"),
    glue(exists="IF NOT EXISTS ", more="REFRESH_INTERVAL_SECONDS = 60 COMMENT = 'c'"),
    REST.format(config="", authentication=OAUTH),
    REST.format(
        config="PREFIX = 'p' CATALOG_NAME = 'n' ACCESS_DELEGATION_MODE = VENDED_CREDENTIALS",
        authentication="TYPE = BEARER BEARER_TOKEN = 't'",
    ),
    REST.format(
        config="CATALOG_API_TYPE = AWS_GLUE, CATALOG_NAME = '1'",
        authentication="TYPE = SIGV4 SIGV4_IAM_ROLE = 'arn' SIGV4_SIGNING_REGION = 'us-east-1'",
    ),
    "CREATE CATALOG INTEGRATION ci CATALOG_SOURCE = POLARIS TABLE_FORMAT = ICEBERG ENABLED = TRUE "
    f"REST_CONFIG = (CATALOG_URI = 'https://p' CATALOG_NAME = 'n') REST_AUTHENTICATION = ({OAUTH})",
    "ALTER CATALOG INTEGRATION ci SET ENABLED = FALSE REFRESH_INTERVAL_SECONDS = 300 COMMENT = ''",
    "ALTER CATALOG INTEGRATION ci SET REST_AUTHENTICATION = (OAUTH_CLIENT_SECRET = 's')",
    "DROP CATALOG INTEGRATION ci",
    "DESCRIBE CATALOG INTEGRATION ci",
    table(),
    table(replace="OR REPLACE ", more="EXTERNAL_VOLUME = 'ev' CATALOG = 'ci'"),
    table(exists="IF NOT EXISTS ", more="EXTERNAL_VOLUME = ev CATALOG_NAMESPACE = 'lkc-1'"),
    table(more="REPLACE_INVALID_CHARACTERS = TRUE AUTO_REFRESH = TRUE COMMENT = 'c'"),
    "ALTER ICEBERG TABLE IF EXISTS db.s.t REFRESH",
    "ALTER ICEBERG TABLE t REFRESH 'metadata/v1.metadata.json'",
    "ALTER ICEBERG TABLE t SET AUTO_REFRESH = FALSE",
    "DROP ICEBERG TABLE IF EXISTS s.t",
    "SHOW ICEBERG TABLES",
    "SHOW ICEBERG TABLES LIKE '%T\\\\_%' IN SCHEMA db.s",
    "SHOW ICEBERG TABLES IN DATABASE db",
    "SHOW ICEBERG TABLES IN ACCOUNT",
    "DESC ICEBERG TABLE db.s.t",
    "CREATE DATABASE IF NOT EXISTS d EXTERNAL_VOLUME = 'ev' CATALOG = 'ci' COMMENT = 'c'",
    "CREATE OR REPLACE SCHEMA d.s DATA_RETENTION_TIME_IN_DAYS = 1",
    "DROP SCHEMA IF EXISTS d.s CASCADE",
    "SHOW DATABASES LIKE 'D%'",
    "CREATE USER U DEFAULT_WAREHOUSE=W DEFAULT_ROLE=R DEFAULT_NAMESPACE='D.S' RSA_PUBLIC_KEY='k'",
    'CREATE USER U TYPE=SERVICE RSA_PUBLIC_KEY="k" DEFAULT_ROLE=PUBLIC',
    "ALTER USER IF EXISTS u SET RSA_PUBLIC_KEY_2 = 'k'",
    "ALTER USER u UNSET RSA_PUBLIC_KEY_2",
    "DESC USER u",
    "CREATE ROLE IF NOT EXISTS r COMMENT='Security Admin role'",
    "GRANT ROLE r TO USER u",
    "GRANT ROLE r TO ROLE s",
    "GRANT ALL PRIVILEGES ON USER u TO ROLE r",
    "GRANT USAGE ON WAREHOUSE w TO ROLE r",
    "GRANT USAGE ON EXTERNAL VOLUME ev TO ROLE r",
    "GRANT USAGE ON INTEGRATION ci TO ROLE r",
    "GRANT SELECT, MONITOR ON ICEBERG TABLE d.s.t TO ROLE r",
    "REVOKE USAGE ON DATABASE d FROM ROLE r CASCADE",
    "REVOKE ROLE r FROM USER u",
    "SHOW GRANTS TO ROLE r",
    "SHOW GRANTS OF ROLE r",
    "CREATE WAREHOUSE IF NOT EXISTS w WAREHOUSE_SIZE = 'X-SMALL' AUTO_SUSPEND = 60",
    "ALTER WAREHOUSE w SET AUTO_SUSPEND = 60",
    "USE ROLE r",
    "USE WAREHOUSE w",
    "USE SECONDARY ROLES ALL",
    "USE d.s",
]


def linked(more: str = "") -> str:
    return f"CREATE DATABASE d LINKED_CATALOG = (CATALOG = 'ci'{more})"


@pytest.mark.parametrize("sql", DOCUMENTED)
def test_documented_statements_are_read_and_with_a_word_too_many_refused(sql: str) -> None:
    assert isinstance(parse(sql), Statement)
    with pytest.raises(ProgrammingError) as caught:
        parse(f"{sql.rstrip(';')} ) bogus")
    assert (caught.value.errno, caught.value.sqlstate) == (1003, "42000")


@pytest.mark.parametrize(
    ("sql", "number", "offender"),
    [
        (glue(replace="OR REPLACE ", exists="IF NOT EXISTS "), 1004, "incompatible"),
        (glue().replace("GLUE_CATALOG_ID", "GLUE_CATALOGUE_ID"), 1420, "GLUE_CATALOGUE_ID"),
        (glue().replace("ENABLED = TRUE", ""), 2029, "ENABLED"),
        (glue().replace("CATALOG_SOURCE = GLUE", ""), 2029, "CATALOG_SOURCE"),
        (glue().replace("= GLUE", "= GLEU"), 1422, "GLEU"),
        (glue().replace("TRUE", "YES"), 1422, "YES"),
        (glue().replace("'000000000000'", "'12'"), 1422, "'12'"),
        (glue(more="REFRESH_INTERVAL_SECONDS = 'x'"), 1422, "'x'"),
        (glue(more="REFRESH_INTERVAL_SECONDS = 29"), 1422, "'29'"),
        ("ALTER CATALOG INTEGRATION ci SET REFRESH_INTERVAL_SECONDS = 86401", 1422, "'86401'"),
        (glue(more="GLUE_REGION = 'a' GLUE_REGION = 'b'"), 1424, "GLUE_REGION"),
        (glue(more="GLUE_REGION 'a'"), 1003, "'a'"),
        (glue(more="GLUE_REGION = 5"), 1003, "'5'"),
        (glue(more="REST_CONFIG = (CATALOG_URI = 'x')"), 1420, "REST_CONFIG"),
        (REST.format(config="", authentication="TYPE = BEARER"), 2029, "BEARER_TOKEN"),
        (
            REST.format(config="", authentication=f"{OAUTH} BEARER_TOKEN = 't'"),
            2028,
            "BEARER_TOKEN",
        ),
        (REST.format(config="WAREHOUSE = 'x'", authentication=OAUTH), 1420, "WAREHOUSE"),
        (volume(more=" STORAGE_REGION = 'x'"), 1420, "STORAGE_REGION"),
        (volume().replace("s3://bucket", "gs://bucket"), 1422, "gs://bucket"),
        (volume().replace("s3://bucket", "s3://my.bucket"), 1422, "my.bucket"),
        (volume().replace("NAME = 'loc'", ""), 2029, "NAME"),
        (volume().replace("STORAGE_LOCATIONS", "STORAGE_LOCATION"), 1420, "STORAGE_LOCATION"),
        (volume(tail="ALLOW_WRITES = 1"), 1422, "'1'"),
        ("CREATE EXTERNAL VOLUME ev STORAGE_LOCATIONS = ()", 1003, "')'"),
        ("CREATE EXTERNAL VOLUME ev", 2029, "STORAGE_LOCATIONS"),
        ("CREATE EXTERNAL VOLUME 'ev'", 1003, "'ev'"),
        ("ALTER CATALOG INTEGRATION ci SET GLUE_REGION = 'x'", 1420, "GLUE_REGION"),
        ("ALTER CATALOG INTEGRATION ci RENAME TO x", 1003, "RENAME"),
        ("ALTER EXTERNAL VOLUME ev REMOVE STORAGE_LOCATION 'loc'", 2, "REMOVE"),
        ("ALTER WAREHOUSE w RESUME IF SUSPENDED", 2, "RESUME"),
        ("SHOW ICEBERG TABLES STARTS WITH 'A'", 2, "STARTS"),
        ("SHOW GRANTS ON EXTERNAL VOLUME ev", 2, "ON"),
        ("CREATE ICEBERG TABLE t EXTERNAL_VOLUME = 'ev'", 2029, "CATALOG_TABLE_NAME"),
        (table(more="AUTOREFRESH = TRUE"), 1420, "AUTOREFRESH"),
        (table(more="AUTO_REFRESH = ON"), 1422, "ON"),
        ("ALTER ICEBERG TABLE t REFRES", 1003, "REFRES"),
        ("DESCRIBE EXTERNAL VOLUME", 1003, "<EOF>"),
        ("CREATE USER u RSA_PUBLIC_KEY_FP = 'x'", 1420, "RSA_PUBLIC_KEY_FP"),
        ("ALTER USER u UNSET RSA_PUBLIC_KEY_3", 1420, "RSA_PUBLIC_KEY_3"),
        ("GRANT ROLE r USER u", 1003, "USER"),
        ("CREATE SCHEMA s WITH COMMENT = 'c'", 1003, "WITH"),
        ("CREATE SCHEMA s WITH MANAGED ACCESS", 2, "WITH MANAGED"),
        ("CREATE SCHEMA s WITH TAG (t = 'v')", 2, "WITH TAG"),
        ("GRANT USAGE, USGE ON DATABASE d TO ROLE r", 3008, "USGE"),
        ("CREATE DATABASE d LINKED_CATALOG = (SYNC_INTERVAL_SECONDS = 30)", 2029, "CATALOG"),
        (linked(", SYNC_INTERVAL_SECONDS = 29"), 1422, "29"),
        (linked(", SYNC_INTERVAL_SECONDS = 86401"), 1422, "86401"),
        (linked(", NAMESPACE_MODE = FLATTEN_NESTED_NAMESPACE"), 1420, "NAMESPACE_MODE"),
        (linked(", CATALOG_NAME = 'x'"), 1420, "CATALOG_NAME"),
        (linked() + " DATA_RETENTION_TIME_IN_DAYS = 1", 1420, "DATA_RETENTION"),
        (linked() + " WITH TAG (a = 'b')", 2, "tags"),
        ("ALTER DATABASE d RENAME TO e", 2, "RENAME"),
        ("ALTER DATABASE d SUSPEND", 2, "SUSPEND"),
        ("ALTER DATABASE d UPDATE LINKED_CATALOG SET SYNC_INTERVAL_SECONDS = 1", 1422, "1"),
        ("ALTER DATABASE d UPDATE LINKED_CATALOG ADD ('n') TO NAMESPACES", 1003, "NAMESPACES"),
        ("CREATE ICEBERG TABLE t (a INT)", 2, "with columns"),
        (table(more="BASE_LOCATION = 'x'"), 2, "Snowflake"),
        (table(more="WITH TAG (a = 'b')"), 2, "tags"),
        ("ALTER USER u ROTATE KEY PAIR kp PUBLIC_KEY = 'x'", 2, "ROTATE"),
        ("GRANT SELECT ON ALL TABLES IN SCHEMA s TO ROLE r", 2, "ON ALL"),
    ],
)
def test_what_is_wrong_is_named(sql: str, number: int, offender: str) -> None:
    with pytest.raises(ProgrammingError) as caught:
        parse(sql)
    assert caught.value.errno == number
    assert offender in str(caught.value)


def test_a_syntax_error_says_where() -> None:
    with pytest.raises(ProgrammingError, match="line 2 at position 2 unexpected 'REFRES'"):
        parse("ALTER ICEBERG TABLE t\n  REFRES")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select * from t -- create external volume x",
        "INSERT INTO t SELECT 1",
        "CREATE TABLE external (volume INT)",
        "WITH x AS (SELECT 1) SELECT * FROM x",
    ],
)
def test_other_statements_are_left_alone(sql: str) -> None:
    assert parse(sql) is None
    pass_through.parse(sql)


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("CREATE STAGE s", "CREATE STAGE"),
        ("CREATE OR REPLACE TASK t AS SELECT 1", "CREATE TASK"),
        ("ALTER TABLE t CLUSTER BY (a)", "ALTER TABLE T CLUSTER BY"),
        ("ALTER STAGE t SET TAG a = 'b'", "ALTER STAGE"),
        ("CREATE TABLE t (a INT) CLUSTER BY (a)", "CREATE TABLE"),
        ("CALL p()", "CALL P"),
        ("PUT file:///x @s", "PUT FILE"),
        ("COPY INTO t FROM @s", "COPY INTO"),
        ("ATTACH 'x' AS y", "ATTACH"),
        ("PRAGMA version", "PRAGMA"),
        ("INSTALL httpfs", "INSTALL"),
        ("SHOW STAGES", "SHOW STAGES"),
        ("SHOW USERS", "SHOW USERS"),
        ("SHOW VIEWS", "SHOW VIEWS"),
        ("SHOW COLUMNS LIKE 'a'", "SHOW COLUMNS"),
        ("CREATE MACRO m() AS 1", "CREATE MACRO"),
    ],
)
def test_what_nobody_does_is_refused_by_name(sql: str, kind: str) -> None:
    assert parse(sql) is None
    with pytest.raises(ProgrammingError) as caught:
        pass_through.parse(sql)
    assert caught.value.errno in (2, 1003)
    if caught.value.errno == 2:
        assert f"not supported by the local Snowflake emulator: {kind}" in str(caught.value)


@given(st.text(min_size=1))
def test_identifiers_survive_quoting(name: str) -> None:
    stream = Stream(f"{quote(name)} rest")
    assert (stream.identifier(), stream.word()) == (name, "REST")


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple))
def test_qualified_names_survive_display(name: tuple[str, ...]) -> None:
    assert Stream(display(name)).name(3) == name


@given(st.text())
def test_strings_survive_escaping(value: str) -> None:
    stream = Stream(f"{text(value)} rest")
    assert (stream.string(), stream.word()) == (value, "REST")


@given(st.text())
def test_any_text_is_cut_into_tokens_and_refused_politely(sql: str) -> None:
    for statement in (sql, f"CREATE EXTERNAL VOLUME {sql}", f"GRANT {sql}"):
        with contextlib.suppress(ProgrammingError):
            parse(statement)


@given(comment=st.text(), name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_$]{0,20}", fullmatch=True))
def test_a_volume_keeps_what_it_is_given(comment: str, name: str) -> None:
    sql = volume(tail=f"COMMENT = {text(comment)}").replace("VOLUME ev", f"VOLUME {name}")
    statement = parse(sql)
    assert statement.name == (name.upper(),)
    assert statement.properties["COMMENT"] == comment
