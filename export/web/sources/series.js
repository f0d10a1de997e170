// A series of frames, typed, opened or drawn, and the results of a network over it.

const $ = (id) => document.getElementById(id);
const FRAMES = 32;          // of the series at the start
const DIGITS = 4;           // of a number that is drawn

/** Frames of a table, numbers [length][channels]; its first line may be a header. */
export function parseTable(text, channels) {
  const frames = [];
  text.trimEnd().split(/\r?\n/).forEach((line, index) => {
    const fields = line.split(",").map((field) => field.trim());
    const frame = fields.map((field) => field === "" ? NaN : Number(field));
    if (index === 0 && frame.length === channels && frame.every(Number.isNaN)) return;
    if (frame.length !== channels || !frame.every(Number.isFinite)) {
      throw new RangeError(`Line ${index + 1}: expected ${channels} numbers, separated by commas.`);
    }
    frames.push(frame);
  });
  if (frames.length === 0) throw new RangeError("There is no frame in the table.");
  return frames;
}

const tableOf = (rows) => rows.map((row) => `${row.join(",")}\n`).join("");

/** Draw columns of rows as lines over time; the value `most` is at the top, -`most` at the bottom. */
function plot(canvas, rows, most, chosen) {
  const { width, height } = canvas.getBoundingClientRect(), scale = devicePixelRatio;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d"), style = getComputedStyle(canvas);
  context.scale(scale, scale);
  const line = (points, colour, thick) => {
    context.strokeStyle = style.getPropertyValue(colour);
    context.lineWidth = thick;
    context.beginPath();
    points.forEach(([x, y]) => context.lineTo(x, y));
    context.stroke();
  };
  const curve = (column) => rows.map((row, t) =>
    [width * (t + 0.5) / rows.length, height / 2 * (1 - row[column] / most)]);
  line([[0, height / 2], [width, height / 2]], "--line", 1);
  rows[0].forEach((_, column) => line(curve(column), "--line", 1));
  line(curve(chosen), "--accent", 3);
}

/**
 * The view of a network. `begin(job, content)`, `end(status)` and `fail(text)` are those of the page.
 */
export function networkView(begin, end, fail) {
  let channels = 0, frames = [], last = null;

  const most = () => Number($("most").value);
  const draw = () => plot($("drawing"), frames, most(), Number($("channel").value));

  /** Take the table that is typed; returns whether it is one. */
  function read() {
    try {
      frames = parseTable($("frames").value, channels);
    } catch (error) {
      fail(error.message);
      return false;
    }
    draw();
    return true;
  }

  function run() {
    if (read()) begin("run", { frames });
  }

  /** Show the network that these facts are of, with a series of zeros. */
  function show(facts) {
    channels = facts.fraction_bits.length;
    $("frames-label").textContent = `Frames, ${channels} numbers a line`;
    $("channel").replaceChildren(...facts.fraction_bits.map((_, index) =>
      new Option(`channel ${index}`, String(index))));
    // The formats leave room above what the network was trained with.
    $("most").value = String(2 ** (facts.bits - 3 - Math.min(...facts.fraction_bits)));
    $("frames").value = tableOf(Array.from({ length: FRAMES }, () => Array(channels).fill(0)));
    $("results").value = "";
    read();
  }

  function showResults({ results, clipped, stopped }) {
    if (stopped) {
      end("Stopped.");
      return;
    }
    const row = results.at(-1), largest = row.indexOf(Math.max(...row));
    $("results").value = tableOf([row.map((_, index) => `y${index}`), ...results]);
    const peak = Math.max(...results.flat().map(Math.abs)) || 1;
    plot($("curves"), results, 1.1 * peak, largest);
    $("curves").setAttribute("aria-label", `Results over time; y${largest} is the largest at the end`);
    end(`Done: ${results.length} frames. At the end, y${largest} is the largest, ${row[largest]}.` +
      (clipped ? ` ${clipped} numbers are beyond the range of the input, and were clipped.` : ""));
  }

  /** Move the chosen channel to the pointer, and in a line from where the pointer was before. */
  function drag(event) {
    const box = $("drawing").getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    const t = Math.max(0, Math.min(frames.length - 1, Math.floor(part * frames.length)));
    const height = 1 - 2 * (event.clientY - box.top) / box.height;
    const value = Math.max(-1, Math.min(1, height)) * most();
    const [from, before] = last ?? [t, value];
    for (let at = Math.min(from, t); at <= Math.max(from, t); at += 1) {
      const share = t === from ? 1 : (at - from) / (t - from);
      frames[at][Number($("channel").value)] =
        Number((before + share * (value - before)).toPrecision(DIGITS));
    }
    last = [t, value];
    draw();
  }

  $("drawing").addEventListener("pointerdown", (event) => {
    if (!read()) return;
    $("drawing").setPointerCapture(event.pointerId);
    drag(event);
  });
  $("drawing").addEventListener("pointermove", (event) => {
    if (last) drag(event);
  });
  for (const type of ["pointerup", "pointercancel"]) {
    $("drawing").addEventListener(type, () => {
      if (!last) return;
      last = null;
      $("frames").value = tableOf(frames);
      run();
    });
  }
  for (const name of ["channel", "most"]) $(name).addEventListener("change", read);
  $("frames").addEventListener("change", read);
  $("table").addEventListener("change", async ({ target }) => {
    if (target.files.length) $("frames").value = await target.files[0].text();
    target.value = "";
    run();
  });
  $("series").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  addEventListener("resize", () => {
    if (!$("network-view").hidden) draw();
  });
  return { handlers: { results: showResults }, show };
}
