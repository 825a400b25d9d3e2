"""The index of keys, the rows that a batch replaces, and tombstones."""
