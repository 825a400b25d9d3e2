"""The platform as assets of the graph, and the rotation of its keys."""
