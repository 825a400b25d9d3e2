"""Alerts: which faults exist, reported once when they begin and once when they are resolved.

``jobs/alerts.py`` reads an :class:`Observation` from Dagster; :func:`evaluate` makes faults of it;
:func:`deliver` sends what changed to the channels.
"""

from topicberg.alerts.alert import Alert, AlertState, Notice, Work, changes
from topicberg.alerts.channels import Channel, channels, deliver
from topicberg.alerts.evaluation import evaluate
from topicberg.alerts.settings import AlertSettings, alert_settings

__all__ = [
    "Alert",
    "AlertSettings",
    "AlertState",
    "Channel",
    "Notice",
    "Work",
    "alert_settings",
    "changes",
    "channels",
    "deliver",
    "evaluate",
]
