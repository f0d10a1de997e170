"""Sources of the folder, with the names of a model `model`, and gaps between @ signs."""
