"""A kind of made-up records is a module here, named as in ``generator.kind`` of a topic spec.

It defines ``records(random: Random) -> Iterator[dict[str, Any]]``: endless, without side effects,
all chance taken from ``random``, so that the same seed makes the same records.
"""
