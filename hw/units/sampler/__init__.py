"""The choice of the next token from logits: the largest, or drawn by temperature."""
