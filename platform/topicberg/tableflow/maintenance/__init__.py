"""Maintenance: what keeps a table fast and small while it is written to."""

from topicberg.tableflow.maintenance.policy import Policy
from topicberg.tableflow.maintenance.report import MaintenanceReport
from topicberg.tableflow.maintenance.run import maintain, maintain_table, topic_policy

__all__ = ["MaintenanceReport", "Policy", "maintain", "maintain_table", "topic_policy"]
