"""The model: training (torch), quantised file and integer reference (NumPy or torch)."""
