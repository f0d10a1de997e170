// Sends acts.hex through the emitted matrix, with pauses, and compares its sums with sums.hex.
// The ports, and where the numbers lie in a payload, are in matrix/README.md.
`timescale 1ns/1ps
module tb;
  localparam WORDS = 20 * 64 / 8, SUMS = 20 * 16, ROWS = 4, BITS = 15;
  reg clk = 0, rst = 1, valid = 0, ready = 0;
  reg [63:0] acts [0:WORDS - 1];            // a word is 8 activations of 8 bits
  reg signed [15:0] sums [0:SUMS - 1];
  wire [ROWS * BITS:0] result;              // 4 sums, and above them the bit `last`
  wire taken, offered;
  integer sent = 0, got = 0, wrong = 0, i;

  ternary_matrix unit (
    .clk(clk), .rst(rst),
    .acts__payload(acts[sent]), .acts__valid(valid), .acts__ready(taken),
    .sums__payload(result), .sums__valid(offered), .sums__ready(ready));

  initial begin
    $readmemh("acts.hex", acts);
    $readmemh("sums.hex", sums);
    #20 rst = 0;
    #100000 $display("FAIL: %0d of %0d sums came in 10,000 cycles", got, SUMS);
    $finish;
  end
  always #5 clk = ~clk;
  always @(posedge clk) if (!rst) begin
    if (valid && taken) sent <= sent + 1;
    if (taken || !valid) valid <= $random && sent + (valid && taken) < WORDS;
    ready <= $random;
    if (ready && offered) begin
      for (i = 0; i < ROWS; i = i + 1)
        if ($signed(result[BITS * i +: BITS]) !== sums[got + i]) wrong = wrong + 1;
      got = got + ROWS;
    end
    if (got == SUMS) begin
      $display("%0s: %0d sums compared, %0d wrong", wrong ? "FAIL" : "PASS", got, wrong);
      $finish;
    end
  end
endmodule
