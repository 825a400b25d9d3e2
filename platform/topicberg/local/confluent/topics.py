"""``/kafka/v3``: topics on the real local broker."""

from __future__ import annotations

from topicberg.local.confluent.account import Account


def delete_all(account: Account, cluster: str) -> None:
    """Delete the topics that were made through this API in a cluster."""
