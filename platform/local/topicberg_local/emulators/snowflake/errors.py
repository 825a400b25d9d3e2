"""Errors as Snowflake answers them: number, SQLSTATE and wording.

Numbers and texts are those that public logs and the live tests of Snowflake's own clients show.
Where no public source shows a number, ours is made up: the errors at the end of this module.
Raised as the connector's ``ProgrammingError``, whose fields the server puts on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from snowflake.connector.errors import ProgrammingError

_COMPILING = "SQL compilation error:\n"
_ACCESS = "SQL access control error:\n"
_EXECUTING = "SQL execution error: "


@dataclass(frozen=True)
class _Error:
    """One kind of error; calling it with the values for its text makes one."""

    number: int
    state: str
    text: str

    def __call__(self, *values: object) -> ProgrammingError:
        shown = (", ".join(one) if isinstance(one, list) else one for one in values)
        message = self.text.format(*shown)
        return ProgrammingError(msg=message, errno=self.number, sqlstate=self.state)


syntax_error = _Error(
    1003, "42000", _COMPILING + "syntax error line {} at position {} unexpected '{}'."
)
invalid_property = _Error(1420, "22023", _COMPILING + "invalid property '{}' for '{}'")
invalid_value = _Error(1422, "22023", _COMPILING + "invalid value '{}' for property '{}'")
missing_options = _Error(2029, "42601", _COMPILING + "Missing option(s): {}")
incompatible = _Error(1004, "0A000", _COMPILING + "options {} and {} are incompatible.")
already_exists = _Error(2002, "42710", _COMPILING + "Object '{}' already exists.")
role_not_granted = _Error(
    3013,
    "42501",
    _ACCESS + "Requested role '{}' is not assigned to the executing user. Specify another role "
    "to activate.",
)
insufficient_privileges = _Error(
    3001, "42501", _ACCESS + "Insufficient privileges to operate on {} '{}'."
)
no_warehouse = _Error(
    606,
    "57P03",
    "No active warehouse selected in the current session.  Select an active warehouse with "
    "the 'use warehouse' command.",
)
invalid_identifier = _Error(
    904, "42000", "SQL compilation error: error line 1 at position 0\ninvalid identifier '{}'"
)
canceled = _Error(604, "57014", "SQL execution canceled")


def does_not_exist(kind: str, name: str) -> ProgrammingError:
    state = "42S02" if kind in ("Object", "Table", "Iceberg table") else "02000"
    text = _COMPILING + "{} '{}' does not exist or not authorized."
    return _Error(2003, state, text)(kind, name)


def statement_count(count: int) -> ProgrammingError:
    if count == 0:
        return _Error(900, "42601", _COMPILING + "Empty SQL statement.")()
    text = "Actual statement count {} did not match the desired statement count 1."
    return _Error(8, "0A000", text)(count)


def no_current(kind: str, command: str) -> ProgrammingError:
    text = (
        "Cannot perform {}. This session does not have a current {}. Call 'USE {}', or use a "
        "qualified name."
    )
    number = 90105 if kind == "database" else 90106
    return _Error(number, "22000", text)(command, kind, kind.upper())


duplicate_property = _Error(1424, "42601", _COMPILING + "duplicate property '{}'")
invalid_option = _Error(2028, "42601", _COMPILING + "Invalid option(s): {}")
in_use = _Error(
    93083,
    "55000",
    _COMPILING + "{} '{}' cannot be dropped or replaced because other objects use it: {}.",
)
invalid_request = _Error(91300, "22023", _COMPILING + "{}")
"""A statement that is well formed and still cannot be done."""
invalid_public_key = _Error(
    3128,
    "22023",
    _EXECUTING + "New public key rejected by current policy. Reason: 'Invalid public key'",
)
invalid_privilege = _Error(
    3008, "42601", _COMPILING + "Invalid privilege '{}' for object type '{}'."
)
unsupported = _Error(2, "0A000", "not supported by the local Snowflake emulator: {}")
attached_policy = _Error(
    1492, "42601", "Cannot drop network policy {}. It is attached to {}. Detach it first."
)
execution_failure = _Error(603, "XX000", _EXECUTING + "{}")
read_only = _Error(
    91357,
    "42601",
    "SQL Compilation error: Iceberg table {} with an external catalog integration is a read-only "
    "table and cannot be modified.",
)
catalog_failure = _Error(4140, "22023", _EXECUTING + "{}")
"""The external catalog or the object store did not give what was asked of it."""
