"""Mixing by position: weights of tokens that do not depend on other tokens."""
