// Runs core_wrapper twice, with a reset in between, and prints what it writes: a line
// "text RUN HEX" for each byte, "done RUN" at the end. Macros give the parameters.

`timescale 1ns / 1ps

module core_wrapper_bench;

    reg clk = 1'b0;
    reg rst = 1'b1;
    wire [7:0] text;
    wire text_valid;
    wire done;

    integer run = 0;
    integer cycles = 0;

    core_wrapper #(
        .TOKEN_BITS(`TOKEN_BITS), .PROMPT_BYTES(`PROMPT_BYTES), .PROMPT(`PROMPT),
        .LIMIT(`LIMIT), .BETA(`BETA), .SEED(`SEED)
    ) wrapper (
        .clk(clk), .rst(rst), .text(text), .text_valid(text_valid), .done(done));

    always #5 clk = ~clk;

    // The wrapper moves at the rising edge, the bench at the falling one.
    always @(negedge clk) begin
        cycles <= cycles + 1;
        if (cycles == 3)
            rst <= 1'b0;
        if (cycles == `DEADLINE) begin
            $display("deadline %0d", run);
            $finish;
        end
        if (!rst) begin
            if (text_valid)
                $display("text %0d %02x", run, text);
            if (done) begin
                $display("done %0d", run);
                run <= run + 1;
                cycles <= 0;
                rst <= 1'b1;
                if (run == 1)
                    $finish;
            end
        end
    end

endmodule
