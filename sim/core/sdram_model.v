// A single data rate SDRAM of 16 bits by its data sheet, four banks, bursts of one word. Counts what
// a controller does too early, too late or in the wrong state, and says what it was.
module sdram_model #(
  parameter CONTENTS = "",
  parameter WORDS = 1024,
  parameter ROW_BITS = 13,
  parameter COLUMN_BITS = 9,
  parameter CL_MIN = 2
) (
  input clk,
  input rst,                         // power off, but for the words
  input [31:0] period,               // of the clock, and all times, in ps
  input [31:0] rcd, rp, ras, rc, rfc, wr,
  input [31:0] refi,                 // between refreshes, on average
  input [31:0] start,
  input [2:0] command,               // RAS, CAS, WE
  input [1:0] bank,
  input [ROW_BITS-1:0] row,
  input [15:0] dq_o,
  input dq_oe,
  output [15:0] dq_i
);
  localparam MODE = 0, REFRESHES = 1, PRECHARGE = 2, ACTIVATE = 3, WRITE = 4, READ = 5;

  reg [15:0] store [0:WORDS-1];
  initial if (CONTENTS != "") $readmemh(CONTENTS, store);

  reg [63:0] now = 1;
  reg [63:0] activated [0:3], precharged [0:3], written [0:3];
  reg [63:0] refreshed = 0, mode_set = 0;
  reg [3:0] opened = 0;
  reg [ROW_BITS-1:0] open_row [0:3];
  reg [3:0] setup_refreshes = 0;
  reg is_set = 0, all_closed = 0;
  reg [2:0] latency = 0;
  reg signed [63:0] debt = 0;        // ps since the last refresh, less what came early

  reg [15:0] words [0:3];
  reg [3:0] driven = 0;
  assign dq_i = driven[0] ? words[0] : 16'hdead;

  integer i, place;

  task fault(input [8*40:1] what);
    begin
      $display("sdram_model: cycle %0d: %0s", now, what);
    end
  endtask

  // Whether so many ps have passed since a cycle; nothing has happened before the first one.
  function passed(input [63:0] since, input [63:0] time_);
    passed = since == 0 || (now - since) * period >= time_;
  endfunction

  always @(posedge clk) if (rst) begin
    if (now != 1) $display("sdram_model: off");
    now <= 1; refreshed <= 0; mode_set <= 0; opened <= 0; setup_refreshes <= 0; is_set <= 0;
    all_closed <= 0; debt <= 0; driven <= 0;
    for (i = 0; i < 4; i = i + 1) begin
      activated[i] <= 0; precharged[i] <= 0; written[i] <= 0;
    end
  end else begin
    now <= now + 1;
    if (is_set) debt <= debt + $signed({32'd0, period});
    if (debt > $signed({32'd0, refi}) * 9) begin
      fault("nine refreshes are due");
      debt <= 0;
    end
    for (i = 0; i < 3; i = i + 1) words[i] <= words[i + 1];
    driven <= driven >> 1;

    if (command != 7 && now * period < start) fault("a command before the memory is ready");
    if (!passed(refreshed, rfc) && command != 7) fault("a command during a refresh");
    if (mode_set != 0 && now - mode_set < 2 && command != 7) fault("a command too soon after mode");

    case (command)
      MODE: begin
        if (opened != 0) fault("the mode is set with a row open");
        if (setup_refreshes < 2) fault("the mode is set before two refreshes");
        if (row[2:0] != 0 || row[3] != 0) fault("bursts of more than one word");
        if (row[6:4] < CL_MIN || row[6:4] > 3) fault("a CAS latency that the memory lacks");
        latency <= row[6:4];
        is_set <= 1;
        mode_set <= now;
      end
      REFRESHES: begin
        if (!all_closed) fault("a refresh before the first precharge");
        if (opened != 0) fault("a refresh with a row open");
        for (i = 0; i < 4; i = i + 1) if (!passed(precharged[i], rp)) fault("refresh within tRP");
        if (setup_refreshes < 15) setup_refreshes <= setup_refreshes + 1;
        refreshed <= now;
        debt <= is_set ? debt + $signed({32'd0, period}) - $signed({32'd0, refi}) : 0;
      end
      PRECHARGE:
        for (i = 0; i < 4; i = i + 1) if (row[10] || bank == i) begin
          if (opened[i] && !passed(activated[i], ras)) fault("precharge within tRAS");
          if (opened[i] && !passed(written[i], wr)) fault("precharge within tWR");
          opened[i] <= 0;
          precharged[i] <= now;
          if (row[10]) all_closed <= 1;
        end
      ACTIVATE: begin
        if (!is_set) fault("a row is opened before the mode is set");
        if (opened[bank]) fault("a row is opened in an open bank");
        if (!passed(precharged[bank], rp)) fault("activate within tRP");
        if (!passed(activated[bank], rc)) fault("activate within tRC");
        opened[bank] <= 1;
        open_row[bank] <= row;
        activated[bank] <= now;
      end
      READ, WRITE: begin
        place = {open_row[bank], bank, row[COLUMN_BITS-1:0]};
        if (!opened[bank]) fault("a word of a closed bank");
        if (!passed(activated[bank], rcd)) fault("a word within tRCD");
        if (row[10]) fault("an automatic precharge");
        if (place >= WORDS) fault("a word beyond the memory");
        if (command == READ) begin
          words[latency - 1] <= place < WORDS ? store[place] : 16'hdead;
          driven[latency - 1] <= 1;
        end else begin
          if (!dq_oe) fault("nothing to write");
          if (driven != 0) fault("both sides drive the pins");
          store[place] <= dq_o;
          written[bank] <= now;
        end
      end
      default: ;
    endcase
    if (dq_oe && command != WRITE) fault("the pins are driven without a write");
  end
endmodule
