"""The local stack: every service topicberg needs, on this machine; no account, no Docker."""
