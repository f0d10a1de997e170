"""What a core runs: programs and weights, in ROMs or as an image behind a port."""
