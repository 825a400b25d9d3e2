"""A kind of made-up records is a module here, named as in ``generator.kind`` of a topic spec.

It defines ``records(random: Random, seed: int) -> Iterator[dict[str, Any]]``: endless, without side
effects, all chance taken from ``random``, which is another one in every run of the generator. What
stays the same over all runs (who there is, say) comes from ``seed``.
"""
