"""The command line: a thin shell over the functions of the same names."""
