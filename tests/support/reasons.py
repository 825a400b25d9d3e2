"""Why the reference decoder rejects a record."""

from __future__ import annotations

from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.reasons import MalformedError


def reason(format_: Format, payload: bytes, pairing: ResolvedSchema) -> str | None:
    """Return why a record is malformed; None: it is not.

    :raises TableflowError: no record of this writer can be a row of the table
    """
    try:
        format_.record_decoder(pairing)(payload)
    except MalformedError as malformed:
        return str(malformed)
    return None
