"""External tools: finding, running and ending them."""
