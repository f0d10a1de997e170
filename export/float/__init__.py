"""The computation of float graphs, close to the reference, in float64."""
