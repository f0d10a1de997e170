"""The ternary multiply-accumulate array, in the style that suits each FPGA family."""
