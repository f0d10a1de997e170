"""What every style of the array shares: geometry, codes of weights, loading of tables."""
