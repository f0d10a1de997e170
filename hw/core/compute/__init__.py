"""The core and its parts."""
