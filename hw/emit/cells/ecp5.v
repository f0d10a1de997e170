// Models of the Lattice ECP5 cells that Sterna instantiates, for simulators. They are our
// own: behaviour without timing, names of modules, ports and parameters as in Lattice's
// library. A synthesis tool for the device knows these cells; do not give it this file.

// Two bits of a carry chain. Each has a look-up table of four inputs; its lowest quarter,
// where C and D are 0, gives the carry of a bit that does not pass one on.
module CCU2C (
    input CIN,
    input A0, input B0, input C0, input D0,
    input A1, input B1, input C1, input D1,
    output S0, output S1, output COUT
);
  parameter [15:0] INIT0 = 16'h0000;
  parameter [15:0] INIT1 = 16'h0000;
  parameter INJECT1_0 = "YES";
  parameter INJECT1_1 = "YES";

  localparam JOINED0 = (INJECT1_0 == "NO");
  localparam JOINED1 = (INJECT1_1 == "NO");

  wire propagate0 = INIT0[{D0, C0, B0, A0}];
  wire propagate1 = INIT1[{D1, C1, B1, A1}];
  wire generate0 = JOINED0 & INIT0[{2'b00, B0, A0}];
  wire generate1 = JOINED1 & INIT1[{2'b00, B1, A1}];
  wire carry = propagate0 ? CIN : generate0;

  assign S0 = propagate0 ^ (JOINED0 & CIN);
  assign S1 = propagate1 ^ (JOINED1 & carry);
  assign COUT = propagate1 ? carry : generate1;
endmodule
