// The page itself: it loads a model, and shows what that is for. The work is done in worker.js.

import { $, grouped } from "./dom.js";
import { networkView } from "./series.js";
import { textView } from "./write.js";

let job = null;         // what the worker does; "broken": nothing ever
let usable = false;     // whether there is a model

function setJob(next) {
  job = next;
  // Not `disabled`: a button that vanishes from the keyboard takes the focus with it.
  for (const button of document.querySelectorAll("button")) {
    const off = button.classList.contains("stop") ? job !== "write" && job !== "run"
      : job !== null || !usable;
    button.setAttribute("aria-disabled", String(off));
  }
  $("text").classList.toggle("running", job === "write");
}

/** Say what is wrong; with an empty text, that nothing is. */
function fail(text) {
  $("error").textContent = text;
  if (text && (job === null || job === "broken")) $("status").textContent = "";
}

/** Let the worker do a job, unless it has one. Returns whether it begins. */
function begin(type, content, transfer = []) {
  if (job !== null) {
    if (job !== "broken") fail("The model is at work: wait, or press Stop first.");
    return false;
  }
  if (!usable && type !== "load") return false;
  fail("");
  $("status").textContent = type === "load" ? "Loading the model." : "Running.";
  setJob(type);
  worker.postMessage({ type, ...content }, transfer);
  return true;
}

function end(text) {
  setJob(null);
  fail("");
  $("status").textContent = text;
}

function stopWith(next, text) {
  setJob(next);
  fail(text);
}

const stop = () => worker.postMessage({ type: "stop" });
const views = { text: textView(begin, end), network: networkView(begin, end, fail) };

function showReady({ facts }) {
  const isNetwork = "bits" in facts;
  usable = true;
  $("text-view").hidden = isNetwork;
  $("network-view").hidden = !isNetwork;
  $(isNetwork ? "series" : "form").after($("status"));
  views[isNetwork ? "network" : "text"].show(facts);
  $("verdict").textContent = "Self-test passed: this browser computes the same results and states " +
    `as the reference (SHA-256 ${facts.self_test.slice(0, 12)}).`;
  $("facts").textContent =
    `${isNetwork ? "A network over" : "A language model of"} ${facts.entry}, ` +
    `${grouped(facts.ternary_weights)} ternary weights, profile ${facts.profile}. ` +
    `Model ${facts.model_sha256.slice(0, 12)}. Sterna ${facts.version}.`;
  end("Ready.");
}

const HANDLERS = {
  ready: showReady,
  failed: ({ text }) => stopWith(null, text),
  ...views.text.handlers,
  ...views.network.handlers,
};

const worker = new Worker("worker.js");
worker.onmessage = ({ data }) => {
  try {
    HANDLERS[data.type](data);
  } catch (error) {
    stopWith(null, error.message);
  }
};
worker.onerror = (event) => {
  stopWith("broken", event.message ? `worker.js failed: ${event.message}`
    : "worker.js could not be loaded.");
};

/** Take a file that was dropped or chosen: a model, or a table for a network. */
async function take(file) {
  try {
    if (!file.name.endsWith(".wasm") && !$("network-view").hidden) {
      await views.network.open(file);
    } else {
      begin("load", { name: file.name, file });
    }
  } catch (error) {
    fail(`${file.name} could not be read: ${error.message}`);
  }
}

for (const button of document.querySelectorAll("button.stop")) button.addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
for (const name of ["file", "table"]) {
  $(name).addEventListener("change", ({ target }) => {
    if (target.files.length) take(target.files[0]);
    target.value = "";
  });
}
for (const type of ["dragover", "drop"]) {
  document.addEventListener(type, (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;    // text, for a field
    event.preventDefault();
    if (type === "drop") take(event.dataTransfer.files[0]);
  });
}

begin("load", {});

// Use without a network -------------------------------------------------------------------

const say = (text) => { $("kept").textContent = text; };

/** Say what becomes of a copy that the browser begins to keep. */
function follow(copy, registration) {
  say("Keeping the page in this browser.");
  copy.addEventListener("statechange", () => {
    if (copy.state === "activated") say("Kept in this browser: opens without a network.");
    if (copy.state === "redundant" && registration.installing === null) {
      say(registration.active ? "An older copy of this page is kept in this browser."
        : "Not kept in this browser: not every file of the page could be fetched and checked.");
    }
  });
}

async function keep() {
  if (!navigator.serviceWorker) throw new Error("browsers keep pages from https and localhost.");
  const registration = await navigator.serviceWorker.register("service.js");
  const copy = registration.installing ?? registration.waiting;
  registration.addEventListener("updatefound", () => follow(registration.installing, registration));
  if (copy) follow(copy, registration);
  else say("Kept in this browser: opens without a network.");
}

keep().catch((error) => say(`Not kept in this browser: ${error.message}`));
