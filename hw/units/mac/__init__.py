"""The ternary multiply-accumulate array: dot products of ternary rows, without a multiplier."""
