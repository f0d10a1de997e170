// Loading what lies beside the page, and running the graph with its state carried along.

import { Tokenizer } from "./text.js";

/** Something the page needs is missing or damaged; the message is for its reader. */
export class LoadError extends Error {}

/** Fetch a file beside the page as bytes. `onBytes(received)` tells how far it is. */
export async function fetchBytes(name, onBytes = () => {}) {
  let response;
  try {
    // Ask the server each time: a page written anew must not mix with files kept by the browser.
    response = await fetch(new URL(name, import.meta.url), { cache: "no-cache" });
  } catch (error) {
    throw new LoadError(`${name} could not be fetched: is the server still running? (${error.message})`);
  }
  if (!response.ok) {
    throw new LoadError(`${name} could not be fetched: the server answered ${response.status}. ` +
      "The page needs every file that sterna web wrote, in one folder.");
  }
  const parts = [];
  let received = 0;
  const reader = response.body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    received += part.value.length;
    onBytes(received);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Fetch a JSON file beside the page. */
export async function fetchJson(name) {
  try {
    return JSON.parse(new TextDecoder().decode(await fetchBytes(name)));
  } catch (error) {
    if (error instanceof LoadError) throw error;
    throw new LoadError(`${name} is damaged: it is not JSON (${error.message}).`);
  }
}

/** A graph of one token under onnxruntime; `state` is carried from token to token. */
export class StepModel {
  #ort; #session;

  constructor(ort, session, facts) {
    this.#ort = ort;
    this.#session = session;
    this.facts = facts;
    this.tokenizer = new Tokenizer(facts.tokenizer, facts.config.vocab);
    this.reset();
  }

  /** Go back to the start of a text. */
  reset() {
    const { layers, d } = this.facts.config;
    this.stateTensor = new this.#ort.Tensor(
      "int32", new Int32Array(layers * d), [layers, 1, d]);
  }

  /** The state after the last token, int32 [layers * d]. */
  get state() {
    return this.stateTensor.data;
  }

  /** Run one token; return its logits, int32 [vocab]. */
  async step(token) {
    const input = new this.#ort.Tensor("int64", BigInt64Array.of(BigInt(token)), [1, 1]);
    const { logits, state_out: state } = await this.#session.run(
      { tokens: input, state: this.stateTensor });
    this.stateTensor = state;
    return logits.data;
  }
}

/** Load facts, runtime and model. `say(text)` tells what is being done. */
export async function loadModel(say) {
  const facts = await fetchJson("params.json");
  if (facts.kind !== "web") {
    throw new LoadError("params.json is not of a page that sterna web wrote.");
  }
  let said = -Infinity;
  const loading = (name) => (bytes) => {
    if (performance.now() - said < 1000) return;      // it is read aloud: not too often
    said = performance.now();
    say(`Loading ${name}: ${(bytes / 1e6).toFixed(1)} MB.`);
  };
  const wasm = await fetchBytes("ort.wasm", loading("onnxruntime"));
  if (String(wasm.subarray(0, 4)) !== "0,97,115,109") {
    throw new LoadError("ort.wasm is not WebAssembly: the server sent something else.");
  }
  const graph = await fetchBytes("model.onnx", loading("the model"));
  let ort;
  try {
    ort = await import("./ort.js");
  } catch (error) {
    throw new LoadError("ort.js could not be loaded: it is missing, or the server does not send " +
      `.js files with the type text/javascript. (${error.message})`);
  }
  say("Preparing the model.");
  // From bytes, so the type that the server gives to .wasm does not matter.
  ort.env.wasm.wasmBinary = wasm.buffer;
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  let session;
  try {
    session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
  } catch (error) {
    throw new LoadError(`onnxruntime cannot load model.onnx: is the file whole? (${error.message})`);
  }
  return new StepModel(ort, session, facts);
}

/** Which of `names` are no longer the files that were written; null if that cannot be known. */
export async function changedFiles(names, facts) {
  if (!globalThis.crypto?.subtle) return null;      // browsers have it on https and localhost only
  const changed = [];
  for (const name of names) {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await fetchBytes(name)));
    const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (hex !== facts.files[name]) changed.push(name);
  }
  return changed;
}
