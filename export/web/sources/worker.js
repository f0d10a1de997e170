// Runs the model beside the page, so that the page stays responsive.

const SLICE_MS = 30;
const ABI = 1;                  // of a file that this page can use
let model = null;               // { own: the functions of page.c, facts }
let stopped = false;
let resting = performance.now();

/** Let messages in, at most once in a slice; resolves to whether to go on. */
async function rest(atRest = () => {}) {
  if (performance.now() - resting > SLICE_MS) {
    atRest();
    await new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => { port1.close(); resolve(); };
      port2.postMessage(null);
    });
    resting = performance.now();
  }
  return !stopped;
}

// Loading ------------------------------------------------------------------------------

async function fetched(name) {
  let response;
  try {
    // Ask the server each time: a page written anew must not mix with files kept by the browser.
    response = await fetch(name, { cache: "no-cache" });
  } catch (error) {
    throw new Error(`could not be fetched: is the server still running? (${error.message})`);
  }
  if (!response.ok) {
    const reason = [response.status, response.statusText].filter(Boolean).join(" ");
    throw new Error(`could not be fetched: ${reason}.`);
  }
  return response.arrayBuffer();
}

/** A file that sterna web wrote, if it is whole and gives the integers of the reference here. */
async function opened(bytes) {
  // Browsers compute digests only on https and localhost.
  const digest = await crypto.subtle?.digest("SHA-256", bytes.slice(0, -32));
  if (digest && String(new Uint8Array(digest)) !== String(new Uint8Array(bytes.slice(-32)))) {
    throw new Error("is damaged, or not a file that sterna web wrote.");
  }
  let compiled;
  try {
    compiled = await WebAssembly.compile(bytes);
  } catch (error) {
    throw new Error(`cannot run in this browser, or is damaged. (${error.message})`);
  }
  const [section] = WebAssembly.Module.customSections(compiled, "sterna");
  if (!section) throw new Error("is not a file that sterna web wrote.");
  const facts = JSON.parse(new TextDecoder().decode(section));
  if (facts.abi !== ABI) {
    throw new Error(`was written by another version of Sterna, ${facts.version}.`);
  }
  const { exports: own } = await WebAssembly.instantiate(compiled);
  if (!own.test()) {
    throw new Error("fails its self-test: it is damaged, or this browser computes wrongly.");
  }
  return { own, facts };
}

/** Take a model: a file that was given, or that of the page. */
async function load({ name = "model.wasm", file }) {
  try {
    model = await opened(file ? await file.arrayBuffer() : await fetched(name));
  } catch (error) {
    throw new Error(`${name} ${error.message}`);
  }
  postMessage({ type: "ready", facts: model.facts });
}

// Text ---------------------------------------------------------------------------------

/** The tokens of a text; an empty one stands for a line end. */
function encode(text) {
  const { own, facts } = model;
  const count = (part) => {
    const bytes = new TextEncoder().encode(part);
    if (bytes.length > facts.longest) {
      throw new RangeError(`The prompt has ${bytes.length} bytes, and ${facts.longest} are allowed.`);
    }
    new Uint8Array(own.memory.buffer, own.text_at()).set(bytes);
    return own.encode(bytes.length);
  };
  const found = count(text || "\n");
  if (facts.numbers && found <= 0) {
    throw new RangeError("This model has no tokenizer: the prompt must be numbers of tokens below " +
      `${facts.results}, such as “3 17”.`);
  }
  if (found < 0) {
    const foreign = [...text].find((character) => count(character) < 0);
    throw new RangeError(`The model lacks “${foreign}”. Take that out of the prompt.`);
  }
  return new Int32Array(own.memory.buffer, own.tokens_at(), found).slice();
}

async function write({ prompt, tokens, temperature, seed }) {
  if (!(temperature === 0 || (temperature >= 0.01 && temperature <= 100))) {
    throw new RangeError(`Temperature must be 0 or from 0.01 to 100, got ${temperature}.`);
  }
  const { own, facts } = model;
  const given = encode(prompt);
  own.start(temperature, seed);
  for (const token of given) {
    own.step(token);
    if (!await rest()) break;
  }
  const started = performance.now();
  // What is not UTF-8 becomes U+FFFD, as in sterna generate.
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  let written = 0, text = "";
  const flush = () => {
    const seconds = (performance.now() - started) / 1000;
    postMessage({ type: "text", text, tokens: written, seconds });
    text = "";
    return seconds;
  };
  while (!stopped && written < tokens) {
    const token = own.sample();
    written += 1;
    if (token === facts.end) break;
    const bytes = new Uint8Array(own.memory.buffer, own.text_at(), own.decode(token));
    text += decoder.decode(bytes, { stream: true });
    if (written < tokens) own.step(token);
    await rest(flush);
  }
  text += decoder.decode();
  postMessage({ type: "written", tokens: written, seconds: flush(), stopped });
}

// Frames -------------------------------------------------------------------------------

/** Run frames, numbers [length][channels], as one sequence. */
async function run({ frames }) {
  const { own, facts } = model;
  const limit = 2 ** (facts.bits - 1);
  const Values = facts.value_bits === 16 ? Int16Array : Int32Array;
  const results = [];
  let clipped = 0;
  own.start();
  for (const frame of frames) {
    const input = new Int32Array(own.memory.buffer, own.frame_at(), frame.length);
    frame.forEach((value, channel) => {
      const scaled = Math.floor(value * 2 ** facts.fraction_bits[channel] + 0.5);
      input[channel] = Math.max(-limit, Math.min(limit - 1, scaled));
      clipped += input[channel] !== scaled;
    });
    const row = new Values(own.memory.buffer, own.step(), facts.results);
    results.push(Array.from(row, (value) => value / 2 ** facts.frac));
    if (!await rest()) break;
  }
  postMessage({ type: "results", results, clipped, stopped });
}

const JOBS = { load, write, run };

onmessage = async ({ data }) => {
  if (data.type === "stop") {
    stopped = true;
    return;
  }
  stopped = false;
  try {
    await JOBS[data.type](data);
  } catch (error) {
    postMessage({ type: "failed", text: error.message });
  }
};
