#!/bin/sh
cp matrix/*.mem . &&    # contents of memories: a simulator reads them from where it runs
iverilog -g2005 -o tb.vvp tb.v matrix/ternary_matrix.v &&
vvp -n tb.vvp | tee tb.log &&
grep -q ^PASS tb.log
