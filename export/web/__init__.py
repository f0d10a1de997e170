"""A model as a static web page: the folder it becomes, and the sources of the page."""
