"""The local stack: every service topicberg needs, on this machine, with no account and no Docker."""
