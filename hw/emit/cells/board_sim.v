// Models of the clock cells of the boards, for simulators only.
//
// A PLL here passes its input on: the frequency is not modelled, so a simulation counts
// cycles of the core, whatever the crystal has. Nor are phase, jitter, duty cycle, the pins
// for dynamic phase and standby, the other outputs, and the check that the settings are
// within the limits of the oscillator. The lock is: it comes 16 cycles after the start.

module EHXPLLL (
    input CLKI, CLKFB, RST, STDBY, ENCLKOP, PLLWAKESYNC,
    input PHASESEL0, PHASESEL1, PHASEDIR, PHASESTEP, PHASELOADREG,
    output CLKOP, LOCK
);
    parameter CLKI_DIV = 1;
    parameter CLKFB_DIV = 1;
    parameter CLKOP_DIV = 8;
    parameter CLKOP_ENABLE = "ENABLED";
    parameter CLKOP_CPHASE = 0;
    parameter CLKOP_FPHASE = 0;
    parameter FEEDBK_PATH = "CLKOP";
    parameter OUTDIVIDER_MUXA = "DIVA";
    parameter PLLRST_ENA = "DISABLED";
    parameter INTFB_WAKE = "DISABLED";
    parameter STDBY_ENABLE = "DISABLED";
    parameter DPHASE_SOURCE = "DISABLED";

    reg [4:0] cycles = 5'd0;
    always @(posedge CLKI)
        if (!cycles[4])
            cycles <= cycles + 5'd1;

    assign CLKOP = CLKI;
    assign LOCK = cycles[4];
endmodule

module SB_PLL40_PAD (
    input PACKAGEPIN, RESETB, BYPASS,
    output PLLOUTGLOBAL, LOCK
);
    parameter FEEDBACK_PATH = "SIMPLE";
    parameter DIVR = 4'd0;
    parameter DIVF = 7'd0;
    parameter DIVQ = 3'd0;
    parameter FILTER_RANGE = 3'd0;

    reg [4:0] cycles = 5'd0;
    always @(posedge PACKAGEPIN)
        if (!cycles[4])
            cycles <= cycles + 5'd1;

    assign PLLOUTGLOBAL = PACKAGEPIN;
    assign LOCK = cycles[4];
endmodule
