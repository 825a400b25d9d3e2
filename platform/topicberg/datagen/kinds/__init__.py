"""Each module here is a kind of generated records, named as in ``generator.kind`` of a topic spec.

It defines ``records(random: Random, seed: int) -> Iterator[dict[str, Any]]``: endless, without side
effects, all randomness taken from ``random``, which differs in every run of the generator. What
stays the same over all runs (e.g. which users exist) is derived from ``seed``.
"""
