"""Published checkpoints: read the folder from a hub, and convert it to integers."""
