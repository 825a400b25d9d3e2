"""The repository that the tests belong to, which is a project of topicberg as well."""

from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[2]
