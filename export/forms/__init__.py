"""The forms by name: building a graph, the test it carries, writing its files."""
