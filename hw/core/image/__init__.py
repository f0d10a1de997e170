"""Programs and weights of a core, in ROMs or as an image behind a port."""
