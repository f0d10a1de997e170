"""A comparison of mixers: the costs and benefits of each, measured the same way for all."""
