// A series of frames, typed, opened or drawn, and the results of a network over it.

import { $ } from "./dom.js";

const FRAMES = 32;          // of the series at the start
const DIGITS = 4;           // of a number that is drawn
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/** Frames of a table, numbers [length][channels]; its first line may be a header without numbers. */
export function parseTable(text, channels) {
  const frames = [];
  text.trimEnd().split(/\r?\n/).forEach((line, index) => {
    const fields = line.split(",").map((field) => field.trim().replace(/^"(.*)"$/, "$1"));
    const frame = fields.map((field) => NUMBER.test(field) ? Number(field) : NaN);
    if (index === 0 && frame.length === channels && !frame.some(Number.isFinite)) return;
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
  const { clientWidth: width, clientHeight: height } = canvas, scale = devicePixelRatio;
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
  if (rows.length === 0) return;
  rows[0].forEach((_, column) => line(curve(column), "--line", 1));
  line(curve(chosen), "--accent", 3);
}

/**
 * The view of a network. `begin(job, content)`, `end(status)` and `fail(text)` are those of the page.
 */
export function networkView(begin, end, fail) {
  let channels = 0, frames = [], results = [];
  let last = null;        // where the pointer drew last: frame and value

  const most = () => Math.abs(Number($("most").value)) || 1;

  function draw() {
    plot($("drawing"), frames, most(), Number($("channel").value));
    const peak = results.flat().reduce((high, value) => Math.max(high, Math.abs(value)), 0) || 1;
    plot($("curves"), results, 1.1 * peak, largest());
  }

  /** The result that is the largest after the last frame. */
  function largest() {
    const row = results.at(-1) ?? [];
    return row.indexOf(Math.max(...row));
  }

  /** Take the table that is typed; returns whether it is one. */
  function read() {
    try {
      frames = parseTable($("frames").value, channels);
    } catch (error) {
      fail(error.message);
      return false;
    }
    fail("");
    draw();
    return true;
  }

  function run() {
    if (read()) begin("run", { frames });
  }

  /** Show the network that these facts are of, with the series that is there, or one of zeros. */
  function show(facts) {
    results = [];
    $("results").value = "";
    $("curves").setAttribute("aria-label", "Results over time: none yet");
    if (channels === facts.fraction_bits.length) {
      read();
      return;
    }
    channels = facts.fraction_bits.length;
    $("frames-label").textContent = `Frames, ${channels} numbers a line`;
    $("channel").replaceChildren(...facts.fraction_bits.map((_, index) =>
      new Option(`channel ${index}`, String(index))));
    // The formats leave room above what the network was trained with.
    $("most").value = String(2 ** (facts.bits - 3 - Math.min(...facts.fraction_bits)));
    $("frames").value = tableOf(Array.from({ length: FRAMES }, () => Array(channels).fill(0)));
    read();
  }

  function showResults({ results: found, clipped, stopped }) {
    if (stopped) {
      end("Stopped.");
      return;
    }
    results = found;
    draw();
    const row = results.at(-1), best = largest();
    $("results").value = tableOf([row.map((_, index) => `y${index}`), ...results]);
    $("curves").setAttribute("aria-label", `Results over time; y${best} is the largest at the end`);
    end(`Done: ${results.length} frames. At the end, y${best} is the largest, ${row[best]}.` +
      (clipped ? ` ${clipped} numbers are beyond the range of the input, and were clipped.` : ""));
  }

  /** Move the chosen channel to the pointer, and in a line from where the pointer was before. */
  function drag(event) {
    const { clientWidth, clientHeight } = $("drawing");
    const place = Math.floor(event.offsetX / clientWidth * frames.length);
    const t = Math.max(0, Math.min(frames.length - 1, place));
    const height = 1 - 2 * event.offsetY / clientHeight;
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
    if (!event.isPrimary || event.button !== 0 || !read()) return;
    $("drawing").setPointerCapture(event.pointerId);
    drag(event);
  });
  $("drawing").addEventListener("pointermove", (event) => {
    if (last && event.isPrimary) drag(event);
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
  $("series").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  for (const change of [window, matchMedia("(prefers-color-scheme: dark)")]) {
    change.addEventListener(change === window ? "resize" : "change", () => {
      if (!$("network-view").hidden) draw();
    });
  }

  /** Run over a table in a file. */
  async function open(file) {
    $("frames").value = await file.text();
    run();
  }

  return { handlers: { results: showResults }, show, open };
}
