"""Where the tables of the lake are registered: a module each, found by entry points."""
