"""What a batch is made of: arrays, keys, hashes, offsets, identity, the commit protocol."""
