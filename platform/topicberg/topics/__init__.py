"""Topic specs: one YAML file describes everything about a topic."""

from topicberg.topics.loader import check_topics, load_topic, load_topics
from topicberg.topics.spec import Rules, TopicSpec

__all__ = ["Rules", "TopicSpec", "check_topics", "load_topic", "load_topics"]
