"""A model as a static web page: its folder, and the sources of the page."""
