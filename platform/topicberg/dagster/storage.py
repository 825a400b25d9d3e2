"""The path that ``dagster.yaml`` of a project may name: it is in topicberg-local now."""

from topicberg.dagster.compatibility import moved

__getattr__ = moved(__name__)
