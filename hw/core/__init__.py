"""One core for every model: made for limits, it runs whatever image lies in its memory."""
