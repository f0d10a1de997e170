"""One core for every model: built for limits, it runs any image within them."""
