"""What a batch is, decided once."""
