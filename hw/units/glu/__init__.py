"""The gated product of the channel mixer: ``silu(gate) * up``."""
