// Runs the model beside the page, so that the page stays responsive.

import { runCheck } from "./check.js";
import { changedFiles, fetchJson, loadModel } from "./model.js";
import { Sampler } from "./sampler.js";
import { Decoder } from "./text.js";

const SLICE_MS = 30;
let model = null;
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

async function write({ prompt, tokens, temperature, seed }) {
  const { logit_frac: logitFrac, exp_table: expTable } = model.facts;
  const sampler = new Sampler({ temperature, seed, logitFrac, expTable });
  const given = model.tokenizer.encode(prompt);
  model.reset();
  let logits;
  for (const token of given) {
    logits = await model.step(token);
    if (!await rest()) break;
  }
  const started = performance.now(), decoder = new Decoder(model.tokenizer);
  const seconds = () => (performance.now() - started) / 1000;
  let written = 0, waiting = [];
  const flush = () => {
    postMessage({ type: "text", text: decoder.push(waiting), tokens: written, seconds: seconds() });
    waiting = [];
  };
  while (!stopped && written < tokens) {
    const token = sampler.next(logits);
    waiting.push(token);
    written += 1;
    if (token === model.tokenizer.endOfText) break;
    if (written < tokens) logits = await model.step(token);
    await rest(flush);
  }
  const time = seconds();
  flush();
  postMessage({ type: "text", text: decoder.end(), tokens: written, seconds: time });
  postMessage({ type: "written", tokens: written, seconds: time, stopped });
}

async function check() {
  const record = await fetchJson("check.json");
  const started = performance.now();
  const result = await runCheck(model, record, (done, total) => rest(
    () => postMessage({ type: "checking", done, total })));
  if (result) result.seconds = (performance.now() - started) / 1000;
  if (result?.mismatches) {
    result.changed = await changedFiles(["model.onnx", "check.json"], model.facts);
  }
  postMessage({ type: "checked", result });
}

const JOBS = { write, check };

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

try {
  model = await loadModel((text) => postMessage({ type: "loading", text }));
  postMessage({ type: "ready", facts: model.facts });
} catch (error) {
  postMessage({ type: "broken", text: error.message });
}
