"""The forms by name: building a graph, its self-test, writing its files."""
