"""Alerts: which faults exist, reported once when they begin and once when they are resolved.

``jobs/observation/`` reads an :class:`~topicberg.alerts.observation.Observation` from Dagster;
:func:`topicberg.alerts.evaluation.evaluate` makes faults of it;
:func:`topicberg.alerts.channels.deliver` sends what changed to the channels.
"""
