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
