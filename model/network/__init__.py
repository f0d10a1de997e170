"""The float model, with torch: modules that are their equations.

``forward`` runs a row of tokens, ``step`` one token; both compute the same.
"""
