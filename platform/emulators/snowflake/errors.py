"""Errors as Snowflake answers them: number, SQLSTATE and wording.

Numbers and texts are those that public logs and the live tests of Snowflake's own clients show.
Where no public source shows a number, ours is made up: the functions at the end of this module.
Raised as the connector's ``ProgrammingError``, whose fields the server puts on the wire.
"""

from __future__ import annotations

from snowflake.connector.errors import ProgrammingError

PREFIX = "SQL compilation error:"


def _error(number: int, state: str, message: str) -> ProgrammingError:
    return ProgrammingError(msg=message, errno=number, sqlstate=state)


def syntax_error(line: int, position: int, found: str) -> ProgrammingError:
    return _error(
        1003,
        "42000",
        f"{PREFIX}\nsyntax error line {line} at position {position} unexpected '{found}'.",
    )


def invalid_property(name: str, kind: str) -> ProgrammingError:
    return _error(1420, "22023", f"{PREFIX}\ninvalid property '{name}' for '{kind}'")


def invalid_value(value: str, name: str) -> ProgrammingError:
    return _error(1422, "22023", f"{PREFIX}\ninvalid value '{value}' for property '{name}'")


def missing_options(names: list[str]) -> ProgrammingError:
    return _error(2029, "42601", f"{PREFIX}\nMissing option(s): {', '.join(names)}")


def incompatible(one: str, other: str) -> ProgrammingError:
    return _error(1004, "0A000", f"{PREFIX}\noptions {one} and {other} are incompatible.")


def does_not_exist(kind: str, name: str) -> ProgrammingError:
    state = "42S02" if kind in ("Object", "Table", "Iceberg table") else "02000"
    return _error(2003, state, f"{PREFIX}\n{kind} '{name}' does not exist or not authorized.")


def already_exists(name: str) -> ProgrammingError:
    return _error(2002, "42710", f"{PREFIX}\nObject '{name}' already exists.")


def role_not_granted(role: str) -> ProgrammingError:
    return _error(
        3013,
        "42501",
        f"SQL access control error:\nRequested role '{role}' is not assigned to the executing "
        "user. Specify another role to activate.",
    )


def insufficient_privileges(kind: str, name: str) -> ProgrammingError:
    return _error(
        3001,
        "42501",
        f"SQL access control error:\nInsufficient privileges to operate on {kind} '{name}'.",
    )


def no_warehouse() -> ProgrammingError:
    return _error(
        606,
        "57P03",
        "No active warehouse selected in the current session.  Select an active warehouse with "
        "the 'use warehouse' command.",
    )


def invalid_identifier(name: str) -> ProgrammingError:
    return _error(904, "42000", f"{PREFIX} error line 1 at position 0\ninvalid identifier '{name}'")


def statement_count(found: int) -> ProgrammingError:
    if found == 0:
        return _error(900, "42601", f"{PREFIX}\nEmpty SQL statement.")
    return _error(
        8, "0A000", f"Actual statement count {found} did not match the desired statement count 1."
    )


def canceled() -> ProgrammingError:
    return _error(604, "57014", "SQL execution canceled")


def no_current(what: str, command: str) -> ProgrammingError:
    number = 90105 if what == "database" else 90106
    return _error(
        number,
        "22000",
        f"Cannot perform {command}. This session does not have a current {what}. "
        f"Call 'USE {what.upper()}', or use a qualified name.",
    )


def duplicate_property(name: str) -> ProgrammingError:
    return _error(1424, "42601", f"{PREFIX}\nduplicate property '{name}'")


def invalid_option(names: list[str]) -> ProgrammingError:
    return _error(2028, "42601", f"{PREFIX}\nInvalid option(s): {', '.join(names)}")


def in_use(kind: str, name: str, by: list[str]) -> ProgrammingError:
    return _error(
        93083,
        "55000",
        f"{PREFIX}\n{kind} '{name}' cannot be dropped or replaced because other objects use it: "
        f"{', '.join(by)}.",
    )


def invalid_request(message: str) -> ProgrammingError:
    """A statement that is well formed and still cannot be done."""
    return _error(91300, "22023", f"{PREFIX}\n{message}")


def invalid_public_key() -> ProgrammingError:
    return _error(
        3128,
        "22023",
        "SQL execution error: New public key rejected by current policy. "
        "Reason: 'Invalid public key'",
    )


def invalid_privilege(name: str, kind: str) -> ProgrammingError:
    return _error(3008, "42601", f"{PREFIX}\nInvalid privilege '{name}' for object type '{kind}'.")


def not_linked(database: str) -> ProgrammingError:
    return invalid_request(f"Database '{database}' is not a catalog-linked database.")


def unsupported(what: str) -> ProgrammingError:
    return _error(2, "0A000", f"not supported by the local Snowflake emulator: {what}")


def attached_policy(name: str, to: str) -> ProgrammingError:
    return _error(
        1492,
        "42601",
        f"Cannot drop network policy {name}. It is attached to {to}. Detach it first.",
    )


def execution_failure(message: str) -> ProgrammingError:
    return _error(603, "XX000", f"SQL execution error: {message}")


def read_only(table: str) -> ProgrammingError:
    return _error(
        91357,
        "42601",
        f"SQL Compilation error: Iceberg table {table} with an external catalog integration "
        "is a read-only table and cannot be modified.",
    )


def catalog_failure(message: str) -> ProgrammingError:
    """The external catalog or the object store did not give what was asked of it."""
    return _error(4140, "22023", f"SQL execution error: {message}")
