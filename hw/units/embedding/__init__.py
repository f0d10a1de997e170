"""The embedding table: a token in, the words of its vector out."""
