"""Projects that `topicberg init` writes."""
