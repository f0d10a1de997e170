"""The float model in torch: modules written as their equations.

``forward`` runs a row of tokens, ``step`` a single token; the results are the same.
"""
