"""The terminal: output for people and programs, progress, texts given by a user."""
