"""The commands of the local stack."""

# Before any module of this package: it imports those that have commands, when it is imported.
import topicberg.cli  # noqa: F401
