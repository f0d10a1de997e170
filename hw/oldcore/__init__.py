"""The whole language model in gateware: token in, token out."""
