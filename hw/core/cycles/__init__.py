"""How many cycles a core takes, and what is in its memories."""
