"""Maintenance keeps a table fast and small while it is written to."""

from topicberg.iceberg.maintenance.policy import MaintenancePolicy
from topicberg.iceberg.maintenance.run import (
    MaintenanceReport,
    maintain,
    maintain_table,
    topic_policy,
)

__all__ = ["MaintenancePolicy", "MaintenanceReport", "maintain", "maintain_table", "topic_policy"]
