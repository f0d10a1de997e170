"""Training data on disk: texts become shards of tokens, read without loading them whole.

Document sources, the held-out split, and the files of a data folder: building and reading one.
No torch.
"""
