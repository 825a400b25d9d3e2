"""The version of topicberg: of its three distributions, and in the snapshots that it commits."""

VERSION = "1.0.0"
IN_SUMMARY = {"topicberg-version": VERSION}
"""Property of the summary of each snapshot that topicberg commits."""
