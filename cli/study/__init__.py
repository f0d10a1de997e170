"""The comparison of mixers: its command, tables and page."""
