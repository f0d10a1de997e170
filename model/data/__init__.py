"""Files of the bundled model."""
