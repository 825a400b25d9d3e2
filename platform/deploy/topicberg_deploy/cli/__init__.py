"""The commands of ``topicberg deploy``."""
