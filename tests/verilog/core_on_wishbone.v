// The core on a pipelined Wishbone bus: linear reads become one read a cycle, and what comes
// waits in a small queue, since an acknowledgement cannot be refused.
//
// Widths are those of the ports of matmul_free_core.v; params.json has them.
module core_on_wishbone #(
  parameter PORT = 64, parameter ADDRESS = 20,
  parameter PROMPT = 1, parameter TOKEN = 1, parameter LOGITS = 1
) (
  input clk, input rst,
  input [PROMPT-1:0] prompts__payload, input prompts__valid, output prompts__ready,
  output [TOKEN-1:0] tokens__payload, output tokens__valid, input tokens__ready,
  output [LOGITS-1:0] logits__payload, output logits__valid, input logits__ready,
  output [2:0] status,
  output wb_cyc, output wb_stb, output [ADDRESS-1:0] wb_adr, input wb_stall,
  input wb_ack, input wb_err, input [PORT-1:0] wb_dat_r
);
  localparam DEPTH = 4;                 // the queue has 2 ** DEPTH words

  wire [2*ADDRESS-1:0] read;
  wire read_valid, read_ready, data_valid, data_ready;

  // What is being read: how many words are left to ask for, and where the next one is.
  reg [ADDRESS-1:0] address, left = 0;
  assign read_ready = left == 0;
  always @(posedge clk)
    if (rst) left <= 0;
    else if (read_valid && read_ready) {left, address} <= read;
    else if (wb_stb && !wb_stall) begin
      address <= address + 1;
      left <= left - 1;
    end

  // A word is asked for when there will be room: `kept` are asked for and not taken yet.
  reg [DEPTH:0] kept = 0, asked = 0;
  assign wb_stb = left != 0 && !kept[DEPTH];
  assign wb_cyc = wb_stb || asked != 0;
  assign wb_adr = address;
  wire asks = wb_stb && !wb_stall, comes = wb_ack || wb_err, goes = data_valid && data_ready;
  always @(posedge clk)
    if (rst) begin
      kept <= 0;
      asked <= 0;
    end else begin
      kept <= kept + asks - goes;
      asked <= asked + asks - comes;
    end

  reg [PORT-1:0] queue [0:(1<<DEPTH)-1];
  reg [DEPTH:0] first = 0, behind = 0;
  assign data_valid = first != behind;
  reg failed = 0;
  always @(posedge clk)
    if (rst) begin
      first <= 0;
      behind <= 0;
      failed <= 0;
    end else begin
      if (comes) begin
        queue[behind[DEPTH-1:0]] <= wb_dat_r;
        behind <= behind + 1;
      end
      if (wb_err) failed <= 1;
      if (goes) first <= first + 1;
    end

  core core (
    .clk(clk), .rst(rst),
    .prompts__payload(prompts__payload), .prompts__valid(prompts__valid),
    .prompts__ready(prompts__ready),
    .tokens__payload(tokens__payload), .tokens__valid(tokens__valid), .tokens__ready(tokens__ready),
    .logits__payload(logits__payload), .logits__valid(logits__valid), .logits__ready(logits__ready),
    .reads__payload(read), .reads__valid(read_valid), .reads__ready(read_ready),
    .data__payload(queue[first[DEPTH-1:0]]), .data__valid(data_valid), .data__ready(data_ready),
    .failed(failed), .status(status));
endmodule
