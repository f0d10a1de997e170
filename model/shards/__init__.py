"""Training data on disk: texts become shards of tokens, which are read without being loaded.

Here are the sources of documents, what is held out, the files of a data folder, building one and
reading one. No torch.
"""
