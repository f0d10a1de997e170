"""Published checkpoints: reading the folder that a hub gives, and making integers of it."""
