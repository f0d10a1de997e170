"""Mixers compared: what each costs and what it buys, measured the same way for all."""
