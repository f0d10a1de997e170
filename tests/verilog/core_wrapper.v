// A complete design around an emitted core: after a reset it sends a prompt, and what the model
// writes comes out, a byte at a time.
//
// It is written by hand from the instantiation template (instance.veo) of a core with one
// sequence, its model in ROMs and no trace; such a core has these ports whatever the model.
// TOKEN_BITS depends on the model: params.json has it under "derived".
//
// Verilog-2001; tests/test_core_wrapper.py simulates it.

module core_wrapper #(
    parameter TOKEN_BITS = 8,              // up to 8: a token is a byte
    parameter [7:0] PROMPT_BYTES = 8'd4,
    parameter [8*PROMPT_BYTES-1:0] PROMPT = "The ",
    parameter [15:0] LIMIT = 16'd64,       // bytes to write, at least 1
    parameter [17:0] BETA = 18'd0,         // log2(e) / temperature * 1024; 0: always the likeliest
    parameter [31:0] SEED = 32'd1
) (
    input  wire       clk,
    input  wire       rst,                 // synchronous, active high
    output reg  [7:0] text,
    output reg        text_valid,          // high for one cycle with each byte
    output reg        done                 // rises with the last byte, stays until a reset
);

    // The prompt: its next byte is at the top. The first one begins a sequence, after the last
    // one the core goes on by itself.
    reg  [8*PROMPT_BYTES-1:0] prompt;
    reg  [7:0] bytes_left;
    // A small vocabulary has fewer bits.
    // verilator lint_off UNUSEDSIGNAL
    wire [7:0] prompt_byte = prompt[8*PROMPT_BYTES-1 -: 8];
    // verilator lint_on UNUSEDSIGNAL
    wire prompt_start = bytes_left == PROMPT_BYTES;
    wire prompt_predict = bytes_left == 8'd1;
    wire prompt_valid = bytes_left != 8'd0;
    wire prompt_ready;

    always @(posedge clk)
        if (rst) begin
            prompt <= PROMPT;
            bytes_left <= PROMPT_BYTES;
        end else if (prompt_valid && prompt_ready) begin
            prompt <= prompt << 8;
            bytes_left <= bytes_left - 8'd1;
        end

    // The text: always taken at once.
    wire [TOKEN_BITS-1:0] token;
    // verilator lint_off UNUSEDSIGNAL
    wire token_sequence;                   // there is sequence 0 only
    // verilator lint_on UNUSEDSIGNAL
    wire token_last;
    wire token_valid;

    always @(posedge clk)
        if (rst) begin
            text <= 8'd0;
            text_valid <= 1'b0;
            done <= 1'b0;
        end else begin
            text_valid <= token_valid;
            if (token_valid) begin
                text[TOKEN_BITS-1:0] <= token;
                done <= token_last;
            end
        end

    // verilator lint_off PINCONNECTEMPTY
    matmul_free_core core (
        .clk(clk),
        .rst(rst),
        .prompts__payload({SEED, BETA, LIMIT, {TOKEN_BITS{1'b0}}, 1'b0, prompt_predict,
                           prompt_start, prompt_byte[TOKEN_BITS-1:0], 1'b0}),
        .prompts__valid(prompt_valid),
        .prompts__ready(prompt_ready),
        .tokens__payload({token_last, token, token_sequence}),
        .tokens__valid(token_valid),
        .tokens__ready(1'b1),
        .logits__payload(),
        .logits__valid(),
        .logits__ready(1'b1)
    );
    // verilator lint_on PINCONNECTEMPTY

endmodule
