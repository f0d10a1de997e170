"""A model as C: its step in integers, weights, sampler and tokenizer, in a folder."""
