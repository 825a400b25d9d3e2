"""Code that leaves this machine: which it is, and how the workers of Spark get it."""
