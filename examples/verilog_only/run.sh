#!/bin/sh
iverilog -g2005 -o tb.vvp tb.v matrix/ternary_matrix.v &&
vvp -n tb.vvp | tee tb.log &&
grep -q ^PASS tb.log
