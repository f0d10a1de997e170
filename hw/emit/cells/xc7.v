// Models of the Xilinx 7 series cells that Sterna instantiates, for simulators. They are
// our own: behaviour without timing, names of modules, ports and parameters as in Xilinx's
// UG953. A synthesis tool for the device knows these cells; do not give it this file.

// Look-up table with two outputs: O5 is the lower half of INIT, O6 all of it.
module LUT6_2 (
    input I0, input I1, input I2, input I3, input I4, input I5,
    output O5, output O6
);
  parameter [63:0] INIT = 64'h0;
  wire [31:0] lower = INIT[31:0];
  wire [4:0] index = {I4, I3, I2, I1, I0};
  assign O5 = lower[index];
  assign O6 = INIT[{I5, index}];
endmodule

// Four bits of a carry chain: a bit with S passes the carry on, else DI is its carry out.
module CARRY4 (
    input CI, input CYINIT, input [3:0] DI, input [3:0] S,
    output [3:0] CO, output [3:0] O
);
  wire into0 = CI | CYINIT;
  wire into1 = S[0] ? into0 : DI[0];
  wire into2 = S[1] ? into1 : DI[1];
  wire into3 = S[2] ? into2 : DI[2];
  assign CO = {S[3] ? into3 : DI[3], into3, into2, into1};
  assign O = S ^ {into3, into2, into1, into0};
endmodule

// Four LUTs as RAM, 32 words of two bits each: read at four addresses, all four written at
// the address of port D on the rising edge of WCLK while WE is high.
module RAM32M (
    input WCLK, input WE,
    input [4:0] ADDRA, input [4:0] ADDRB, input [4:0] ADDRC, input [4:0] ADDRD,
    input [1:0] DIA, input [1:0] DIB, input [1:0] DIC, input [1:0] DID,
    output [1:0] DOA, output [1:0] DOB, output [1:0] DOC, output [1:0] DOD
);
  parameter [63:0] INIT_A = 64'h0;
  parameter [63:0] INIT_B = 64'h0;
  parameter [63:0] INIT_C = 64'h0;
  parameter [63:0] INIT_D = 64'h0;
  reg [1:0] words_a [0:31];
  reg [1:0] words_b [0:31];
  reg [1:0] words_c [0:31];
  reg [1:0] words_d [0:31];
  integer word;
  initial begin
    for (word = 0; word < 32; word = word + 1) begin
      words_a[word] = INIT_A[2*word+:2];
      words_b[word] = INIT_B[2*word+:2];
      words_c[word] = INIT_C[2*word+:2];
      words_d[word] = INIT_D[2*word+:2];
    end
  end
  assign DOA = words_a[ADDRA];
  assign DOB = words_b[ADDRB];
  assign DOC = words_c[ADDRC];
  assign DOD = words_d[ADDRD];
  always @(posedge WCLK) begin
    if (WE) begin
      words_a[ADDRD] <= DIA;
      words_b[ADDRD] <= DIB;
      words_c[ADDRD] <= DIC;
      words_d[ADDRD] <= DID;
    end
  end
endmodule
