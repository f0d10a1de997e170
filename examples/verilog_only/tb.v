// Sends 20 vectors of acts.hex through the emitted matrix, and compares its sums with sums.hex.
`timescale 1ns/1ps
module tb;
  reg [63:0] acts [0:159];  // a word is 8 activations of 8 bits
  reg [59:0] sums [0:79];   // a word is 4 sums of 15 bits
  reg clk = 0, rst = 1;
  wire [60:0] result; wire taken, offered;  // result: 4 sums, and above them the bit `last`
  integer sent = 0, got = 0, wrong = 0;
  ternary_matrix unit (.clk(clk), .rst(rst),
    .acts__payload(acts[sent]), .acts__valid(!rst && sent < 160), .acts__ready(taken),
    .sums__payload(result), .sums__valid(offered), .sums__ready(1'b1));
  initial begin $readmemh("acts.hex", acts); $readmemh("sums.hex", sums); #20 rst = 0; end
  always #5 clk = ~clk;
  always @(posedge clk) if (!rst) begin
    if (taken && sent < 160) sent <= sent + 1;
    if (offered) begin got = got + 1; if (result[59:0] !== sums[got - 1]) wrong = wrong + 1; end
    if (got == 80 || $time > 100000) begin
      $display("%0s: %0d words compared, %0d wrong", wrong || got < 80 ? "FAIL":"PASS", got, wrong);
      $finish; end end
endmodule
