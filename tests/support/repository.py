"""The repository that the tests belong to, which is a project of topicberg as well."""

from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = (PROJECT_ROOT, PROJECT_ROOT / "platform/deploy", PROJECT_ROOT / "platform/local")
"""Where ``topicberg``, ``topicberg-deploy`` and ``topicberg-local`` are built."""
