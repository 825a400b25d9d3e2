"""The derived tables; every module here is part of the graph."""
