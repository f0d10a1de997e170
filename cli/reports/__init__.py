"""Results as tables, bars and pages."""
