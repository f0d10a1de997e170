"""The terminal: printing for people and programs, progress, texts that a user names."""
