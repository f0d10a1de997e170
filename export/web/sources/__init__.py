"""Sources of the web page: HTML, style sheet and modules that a browser reads unchanged."""
