// Simulation models, written for Sterna, of the cells that `synth_ecp5` of Yosys makes a netlist
// of and has no model of: block RAM, multiplier, pads. Names, ports, parameters and their defaults
// are those of the cells; what a cell does besides is not modelled: no timing, no global set/reset,
// and for the block RAM and the multiplier only what the comment above each says. A parameter or
// port that is not modelled is missing here, which stops a simulator, rather than being ignored.
//
// Plain Verilog-2001, for Verilator and Icarus Verilog. Start values are those after the bitstream
// was loaded.

// A register inside the block RAM or the multiplier; reset comes before enable.
module STERNA_ECP5_REGISTER (clock, reset, enable, in, out);
  parameter WIDTH = 1;
  parameter RESETMODE = "SYNC";
  input clock, reset, enable;
  input [WIDTH-1:0] in;
  output reg [WIDTH-1:0] out;
  initial out = {WIDTH{1'b0}};
  generate
    if (RESETMODE == "ASYNC") begin : asynchronous
      always @(posedge clock or posedge reset)
        if (reset) out <= {WIDTH{1'b0}};
        else if (enable) out <= in;
    end else begin : synchronous
      always @(posedge clock)
        if (reset) out <= {WIDTH{1'b0}};
        else if (enable) out <= in;
    end
  endgenerate
endmodule

// Block RAM of 18 kbit, two ports of 1, 2, 4, 9 or 18 bits. Of 36 bits are port A as the only one
// that writes (data {DIB, DIA}) and port B as the only one that reads ({DOB, DOA}, with the clock,
// enables and reset of port B). An address counts bits, nine to a byte of eight bits and a parity
// that widths below 9 leave out; at 18 and 36 bits its low bits enable the bytes of a write.
//
// A port selected by CS and enabled by CE writes (WE) or reads. While it writes, its output stays
// (NORMAL), or shows what was there (READBEFOREWRITE) or, in the bytes written, what it writes
// (WRITETHROUGH). RST clears the output and blocks a write. With REGMODE "OUTREG" a register
// follows, which OCE enables, its reset, too.
//
// What a port reads while the other one writes it is not defined by the vendor: here every such
// bit is the opposite of what was there, so that no bench passes that depends on it. A bit that
// both write gets the value of port A. Both ports must have the same clock for that;
// sterna.hw.flow.netlist.netlist_verilog refuses others.
module DP16KD (
    input DIA17, DIA16, DIA15, DIA14, DIA13, DIA12, DIA11, DIA10, DIA9, DIA8, DIA7, DIA6, DIA5,
    DIA4, DIA3, DIA2, DIA1, DIA0,
    input ADA13, ADA12, ADA11, ADA10, ADA9, ADA8, ADA7, ADA6, ADA5, ADA4, ADA3, ADA2, ADA1, ADA0,
    input CEA, OCEA, CLKA, WEA, RSTA, CSA2, CSA1, CSA0,
    output DOA17, DOA16, DOA15, DOA14, DOA13, DOA12, DOA11, DOA10, DOA9, DOA8, DOA7, DOA6, DOA5,
    DOA4, DOA3, DOA2, DOA1, DOA0,
    input DIB17, DIB16, DIB15, DIB14, DIB13, DIB12, DIB11, DIB10, DIB9, DIB8, DIB7, DIB6, DIB5,
    DIB4, DIB3, DIB2, DIB1, DIB0,
    input ADB13, ADB12, ADB11, ADB10, ADB9, ADB8, ADB7, ADB6, ADB5, ADB4, ADB3, ADB2, ADB1, ADB0,
    input CEB, OCEB, CLKB, WEB, RSTB, CSB2, CSB1, CSB0,
    output DOB17, DOB16, DOB15, DOB14, DOB13, DOB12, DOB11, DOB10, DOB9, DOB8, DOB7, DOB6, DOB5,
    DOB4, DOB3, DOB2, DOB1, DOB0
  );
  parameter DATA_WIDTH_A = 18, DATA_WIDTH_B = 18;
  parameter REGMODE_A = "NOREG", REGMODE_B = "NOREG";
  parameter RESETMODE = "SYNC", ASYNC_RESET_RELEASE = "SYNC";
  parameter CSDECODE_A = "0b000", CSDECODE_B = "0b000";
  parameter WRITEMODE_A = "NORMAL", WRITEMODE_B = "NORMAL";
  parameter CLKAMUX = "CLKA", CLKBMUX = "CLKB";
  parameter GSR = "ENABLED", INIT_DATA = "STATIC";
  parameter [319:0]
      INITVAL_00 = 320'h0, INITVAL_01 = 320'h0, INITVAL_02 = 320'h0, INITVAL_03 = 320'h0,
      INITVAL_04 = 320'h0, INITVAL_05 = 320'h0, INITVAL_06 = 320'h0, INITVAL_07 = 320'h0,
      INITVAL_08 = 320'h0, INITVAL_09 = 320'h0, INITVAL_0A = 320'h0, INITVAL_0B = 320'h0,
      INITVAL_0C = 320'h0, INITVAL_0D = 320'h0, INITVAL_0E = 320'h0, INITVAL_0F = 320'h0,
      INITVAL_10 = 320'h0, INITVAL_11 = 320'h0, INITVAL_12 = 320'h0, INITVAL_13 = 320'h0,
      INITVAL_14 = 320'h0, INITVAL_15 = 320'h0, INITVAL_16 = 320'h0, INITVAL_17 = 320'h0,
      INITVAL_18 = 320'h0, INITVAL_19 = 320'h0, INITVAL_1A = 320'h0, INITVAL_1B = 320'h0,
      INITVAL_1C = 320'h0, INITVAL_1D = 320'h0, INITVAL_1E = 320'h0, INITVAL_1F = 320'h0,
      INITVAL_20 = 320'h0, INITVAL_21 = 320'h0, INITVAL_22 = 320'h0, INITVAL_23 = 320'h0,
      INITVAL_24 = 320'h0, INITVAL_25 = 320'h0, INITVAL_26 = 320'h0, INITVAL_27 = 320'h0,
      INITVAL_28 = 320'h0, INITVAL_29 = 320'h0, INITVAL_2A = 320'h0, INITVAL_2B = 320'h0,
      INITVAL_2C = 320'h0, INITVAL_2D = 320'h0, INITVAL_2E = 320'h0, INITVAL_2F = 320'h0,
      INITVAL_30 = 320'h0, INITVAL_31 = 320'h0, INITVAL_32 = 320'h0, INITVAL_33 = 320'h0,
      INITVAL_34 = 320'h0, INITVAL_35 = 320'h0, INITVAL_36 = 320'h0, INITVAL_37 = 320'h0,
      INITVAL_38 = 320'h0, INITVAL_39 = 320'h0, INITVAL_3A = 320'h0, INITVAL_3B = 320'h0,
      INITVAL_3C = 320'h0, INITVAL_3D = 320'h0, INITVAL_3E = 320'h0, INITVAL_3F = 320'h0;

  // Where in a word of 36 bits an address begins, and the bits that a write there changes.
  function [5:0] place (input [13:0] address, input integer width);
    reg [2:0] offset;
    begin
      offset = width == 1 ? address[2:0] : width == 2 ? {address[2:1], 1'b0} :
               width == 4 ? {address[2], 2'b00} : 3'd0;
      place = width == 36 ? 6'd0 : (address[4] ? 6'd18 : 6'd0) + (
              width == 18 ? 6'd0 : (address[3] ? 6'd9 : 6'd0) + {3'd0, offset});
    end
  endfunction
  function [35:0] changed (input [13:0] address, input integer width);
    changed = width == 36 ? {{9{address[3]}}, {9{address[2]}}, {9{address[1]}}, {9{address[0]}}} :
              width == 18 ? {18'd0, {9{address[1]}}, {9{address[0]}}} << place(address, width) :
              ((36'd1 << width) - 36'd1) << place(address, width);
  endfunction

  // Row r of 18 bits is INITVAL[20 * r +: 18], all parameters in a row.
  reg [35:0] memory [0:511];
  wire [20479:0] start = {
      INITVAL_3F, INITVAL_3E, INITVAL_3D, INITVAL_3C, INITVAL_3B, INITVAL_3A, INITVAL_39,
      INITVAL_38, INITVAL_37, INITVAL_36, INITVAL_35, INITVAL_34, INITVAL_33, INITVAL_32,
      INITVAL_31, INITVAL_30, INITVAL_2F, INITVAL_2E, INITVAL_2D, INITVAL_2C, INITVAL_2B,
      INITVAL_2A, INITVAL_29, INITVAL_28, INITVAL_27, INITVAL_26, INITVAL_25, INITVAL_24,
      INITVAL_23, INITVAL_22, INITVAL_21, INITVAL_20, INITVAL_1F, INITVAL_1E, INITVAL_1D,
      INITVAL_1C, INITVAL_1B, INITVAL_1A, INITVAL_19, INITVAL_18, INITVAL_17, INITVAL_16,
      INITVAL_15, INITVAL_14, INITVAL_13, INITVAL_12, INITVAL_11, INITVAL_10, INITVAL_0F,
      INITVAL_0E, INITVAL_0D, INITVAL_0C, INITVAL_0B, INITVAL_0A, INITVAL_09, INITVAL_08,
      INITVAL_07, INITVAL_06, INITVAL_05, INITVAL_04, INITVAL_03, INITVAL_02, INITVAL_01,
      INITVAL_00};
  integer row;
  initial
    for (row = 0; row < 512; row = row + 1)
      memory[row] = {start[40 * row + 20 +: 18], start[40 * row +: 18]};

  wire [13:0] address_a = {
      ADA13, ADA12, ADA11, ADA10, ADA9, ADA8, ADA7, ADA6, ADA5, ADA4, ADA3, ADA2, ADA1, ADA0};
  wire [17:0] in_a = {
      DIA17, DIA16, DIA15, DIA14, DIA13, DIA12, DIA11, DIA10, DIA9, DIA8, DIA7, DIA6, DIA5,
      DIA4, DIA3, DIA2, DIA1, DIA0};
  wire [13:0] address_b = {
      ADB13, ADB12, ADB11, ADB10, ADB9, ADB8, ADB7, ADB6, ADB5, ADB4, ADB3, ADB2, ADB1, ADB0};
  wire [17:0] in_b = {
      DIB17, DIB16, DIB15, DIB14, DIB13, DIB12, DIB11, DIB10, DIB9, DIB8, DIB7, DIB6, DIB5,
      DIB4, DIB3, DIB2, DIB1, DIB0};

  wire clock_a = CLKAMUX == "INV" ? ~CLKA : CLKA;
  wire clock_b = CLKBMUX == "INV" ? ~CLKB : CLKB;
  // The last three characters of a code are the bits that select the port.
  wire active_a = CEA && {CSA2, CSA1, CSA0} == {CSDECODE_A[16], CSDECODE_A[8], CSDECODE_A[0]};
  wire active_b = CEB && {CSB2, CSB1, CSB0} == {CSDECODE_B[16], CSDECODE_B[8], CSDECODE_B[0]};
  wire write_a = active_a && WEA && !(RSTA && RESETMODE == "SYNC");
  wire write_b = active_b && WEB && !(RSTB && RESETMODE == "SYNC");
  wire [35:0] mask_a = changed(address_a, DATA_WIDTH_A);
  wire [35:0] mask_b = changed(address_b, DATA_WIDTH_B);
  wire [5:0] place_a = place(address_a, DATA_WIDTH_A);
  wire [5:0] place_b = place(address_b, DATA_WIDTH_B);
  wire [35:0] data_a = DATA_WIDTH_A == 36 ? {in_b, in_a} : {18'd0, in_a} << place_a;
  wire [35:0] data_b = {18'd0, in_b} << place_b;
  wire [35:0] there_a = memory[address_a[13:5]];
  wire [35:0] there_b = memory[address_b[13:5]];

  // Both ports may write to one word: either writes what it then is.
  wire same = address_a[13:5] == address_b[13:5];
  wire [35:0] by_a = write_a ? mask_a : 36'd0;
  wire [35:0] by_b = write_b ? mask_b : 36'd0;
  wire [35:0] also_a = same ? by_a : 36'd0;
  wire [35:0] also_b = same ? by_b : 36'd0;
  always @(posedge clock_a)
    if (write_a)
      memory[address_a[13:5]] <= (data_a & mask_a) | (data_b & also_b & ~mask_a)
                                 | (there_a & ~(mask_a | also_b));
  always @(posedge clock_b)
    if (write_b)
      memory[address_b[13:5]] <= (data_a & also_a) | (data_b & mask_b & ~also_a)
                                 | (there_b & ~(mask_b | also_a));

  // What the output latches get: a word, shifted down.
  wire [35:0] read_a = there_a ^ also_b;
  wire [35:0] read_b = there_b ^ also_a;
  wire [35:0] shown_a = WRITEMODE_A == "WRITETHROUGH" ? data_a : read_a;
  wire [35:0] shown_b = WRITEMODE_B == "WRITETHROUGH" ? data_b : read_b;
  wire [35:0] low_a = (WEA ? shown_a : read_a) >> place_a;
  wire [35:0] low_b = (WEB ? shown_b : read_b) >> place_b;
  wire [35:0] used_a = DATA_WIDTH_A == 36 ? 36'd0 : (36'd1 << DATA_WIDTH_A) - 36'd1;
  wire [35:0] used_b = DATA_WIDTH_B == 36 ? ~36'd0 : (36'd1 << DATA_WIDTH_B) - 36'd1;
  wire load_a = active_a && (!WEA || WRITEMODE_A != "NORMAL");
  wire load_b = active_b && (!WEB || WRITEMODE_B != "NORMAL");
  // WRITETHROUGH leaves bytes of 18 bits that are not written as they are.
  wire [35:0] kept_a = WEA && WRITEMODE_A == "WRITETHROUGH" ? ~(mask_a >> place_a) : 36'd0;
  wire [35:0] kept_b = WEB && WRITEMODE_B == "WRITETHROUGH" ? ~(mask_b >> place_b) : 36'd0;
  wire [35:0] latch_a, latch_b, register_a, register_b;
  STERNA_ECP5_REGISTER #(.WIDTH(36), .RESETMODE(RESETMODE)) latch_of_a (
    .clock(clock_a), .reset(RSTA), .enable(load_a),
    .in((low_a & used_a & ~kept_a) | (latch_a & kept_a)), .out(latch_a));
  STERNA_ECP5_REGISTER #(.WIDTH(36), .RESETMODE(RESETMODE)) latch_of_b (
    .clock(clock_b), .reset(RSTB), .enable(load_b),
    .in((low_b & used_b & ~kept_b) | (latch_b & kept_b)), .out(latch_b));
  STERNA_ECP5_REGISTER #(.WIDTH(36), .RESETMODE(RESETMODE)) register_of_a (
    .clock(clock_a), .reset(RSTA && (OCEA || RESETMODE == "ASYNC")), .enable(OCEA),
    .in(latch_a), .out(register_a));
  STERNA_ECP5_REGISTER #(.WIDTH(36), .RESETMODE(RESETMODE)) register_of_b (
    .clock(clock_b), .reset(RSTB && (OCEB || RESETMODE == "ASYNC")), .enable(OCEB),
    .in(latch_b), .out(register_b));
  wire [35:0] choice_a = REGMODE_A == "OUTREG" ? register_a : latch_a;
  wire [35:0] choice_b = REGMODE_B == "OUTREG" ? register_b : latch_b;
  wire [35:0] wide = REGMODE_A == "OUTREG" ? register_b : latch_b;
  assign {
      DOA17, DOA16, DOA15, DOA14, DOA13, DOA12, DOA11, DOA10, DOA9, DOA8, DOA7, DOA6, DOA5,
      DOA4, DOA3, DOA2, DOA1, DOA0} =
      DATA_WIDTH_B == 36 ? wide[17:0] : choice_a[17:0];
  assign {
      DOB17, DOB16, DOB15, DOB14, DOB13, DOB12, DOB11, DOB10, DOB9, DOB8, DOB7, DOB6, DOB5,
      DOB4, DOB3, DOB2, DOB1, DOB0} =
      DATA_WIDTH_B == 36 ? choice_b[35:18] : choice_b[17:0];
endmodule

// Multiplier of 18 by 18 bits, each operand signed or not, with a register for each operand and
// its sign, and one at the end; each is left out, or has one of four clocks, enables and resets,
// synchronous ones. Not modelled: the register in the middle, the operand C, the shift chain (SRI,
// SRO, SOURCE) and the copies of the operands (RO) that the adder beside it would take.
module MULT18X18D (
    input A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0,
    input B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0,
    input C17, C16, C15, C14, C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2, C1, C0,
    input SIGNEDA, SIGNEDB, SOURCEA, SOURCEB,
    input CLK3, CLK2, CLK1, CLK0, CE3, CE2, CE1, CE0, RST3, RST2, RST1, RST0,
    output P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19,
    P18, P17, P16, P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
  );
  parameter REG_INPUTA_CLK = "NONE", REG_INPUTA_CE = "CE0", REG_INPUTA_RST = "RST0";
  parameter REG_INPUTB_CLK = "NONE", REG_INPUTB_CE = "CE0", REG_INPUTB_RST = "RST0";
  parameter REG_OUTPUT_CLK = "NONE", REG_OUTPUT_CE = "CE0", REG_OUTPUT_RST = "RST0";

  // The last character of "CLK2", "CE2" or "RST2" says which: '0' is 48.
  function pick (input [7:0] last, input [3:0] four);
    pick = four[last[1:0]];
  endfunction
  wire [17:0] a = {
      A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0};
  wire [17:0] b = {
      B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0};
  wire [3:0] clocks = {CLK3, CLK2, CLK1, CLK0};
  wire [3:0] enables = {CE3, CE2, CE1, CE0};
  wire [3:0] resets = {RST3, RST2, RST1, RST0};

  wire [18:0] registered_a, registered_b;
  STERNA_ECP5_REGISTER #(.WIDTH(19)) input_a (
    .clock(REG_INPUTA_CLK != "NONE" && pick(REG_INPUTA_CLK, clocks)),
    .reset(pick(REG_INPUTA_RST, resets)), .enable(pick(REG_INPUTA_CE, enables)),
    .in({SIGNEDA, a}), .out(registered_a));
  STERNA_ECP5_REGISTER #(.WIDTH(19)) input_b (
    .clock(REG_INPUTB_CLK != "NONE" && pick(REG_INPUTB_CLK, clocks)),
    .reset(pick(REG_INPUTB_RST, resets)), .enable(pick(REG_INPUTB_CE, enables)),
    .in({SIGNEDB, b}), .out(registered_b));
  wire [18:0] taken_a = REG_INPUTA_CLK == "NONE" ? {SIGNEDA, a} : registered_a;
  wire [18:0] taken_b = REG_INPUTB_CLK == "NONE" ? {SIGNEDB, b} : registered_b;

  wire signed [37:0] operand_a = {{20{taken_a[18] & taken_a[17]}}, taken_a[17:0]};
  wire signed [37:0] operand_b = {{20{taken_b[18] & taken_b[17]}}, taken_b[17:0]};
  wire signed [37:0] product = operand_a * operand_b;

  wire [35:0] registered_result;
  STERNA_ECP5_REGISTER #(.WIDTH(36)) result (
    .clock(REG_OUTPUT_CLK != "NONE" && pick(REG_OUTPUT_CLK, clocks)),
    .reset(pick(REG_OUTPUT_RST, resets)), .enable(pick(REG_OUTPUT_CE, enables)),
    .in(product[35:0]), .out(registered_result));
  assign {
      P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18,
      P17, P16, P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0} =
      REG_OUTPUT_CLK == "NONE" ? product[35:0] : registered_result;
endmodule

// Pads, without their electrical parameters.
module IB (input I, output O);
  assign O = I;
endmodule

module OB (input I, output O);
  assign O = I;
endmodule

module BB (input I, T, output O, inout B);
  assign B = T ? 1'bz : I;
  assign O = B;
endmodule
