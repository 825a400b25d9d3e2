"""Alerts: what is wrong, told once to those who mend it, and told again when it is mended."""

from topicberg.alerts.alert import Alert, Notice, Told, Work, changes
from topicberg.alerts.channels import Channel, channels, tell
from topicberg.alerts.settings import AlertSettings, alert_settings

__all__ = [
    "Alert",
    "AlertSettings",
    "Channel",
    "Notice",
    "Told",
    "Work",
    "alert_settings",
    "changes",
    "channels",
    "tell",
]
