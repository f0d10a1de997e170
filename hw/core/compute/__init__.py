"""What computes: the core and its parts."""
