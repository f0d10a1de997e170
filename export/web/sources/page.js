// The page itself: it loads a model, and shows what that is for. The work is done in worker.js.

import { networkView } from "./series.js";
import { textView } from "./write.js";

const $ = (id) => document.getElementById(id);
let job = "load";       // what the worker does; null: nothing
let usable = false;     // whether there is a model

function setJob(next) {
  job = next;
  // Not `disabled`: a button that vanishes from the keyboard takes the focus with it.
  for (const button of document.querySelectorAll("button")) {
    const off = button.classList.contains("stop") ? job === null || job === "load"
      : job !== null || !usable;
    button.setAttribute("aria-disabled", String(off));
  }
  $("text").classList.toggle("running", job === "write");
}

function fail(text) {
  $("error").textContent = text;
  $("status").textContent = "";
}

/** Let the worker do a job, unless it has one. Returns whether it begins. */
function begin(type, content, transfer = []) {
  if (job !== null || (!usable && type !== "load")) return false;
  $("error").textContent = "";
  $("status").textContent = type === "load" ? "Loading the model." : "Running.";
  setJob(type);
  worker.postMessage({ type, ...content }, transfer);
  return true;
}

function end(text) {
  $("status").textContent = text;
  setJob(null);
}

const stop = () => worker.postMessage({ type: "stop" });
const views = { text: textView(begin, end), network: networkView(begin, end, fail) };

function showReady({ facts }) {
  const isNetwork = "bits" in facts;
  usable = true;
  $("text-view").hidden = isNetwork;
  $("network-view").hidden = !isNetwork;
  if (isNetwork) views.network.show(facts);
  $(isNetwork ? "series" : "form").after($("status"));
  const words = (number) => number.toLocaleString("en");
  $("verdict").textContent =
    `Self-test passed: the results and states that this browser computes have the SHA-256 of ` +
    `those of the reference, ${facts.self_test.slice(0, 12)}.`;
  $("facts").textContent =
    `${isNetwork ? "A network over" : "A language model of"} ${facts.entry}, ` +
    `${words(facts.ternary_weights)} ternary weights, profile ${facts.profile}. ` +
    `Model ${facts.model_sha256.slice(0, 12)}. Sterna ${facts.version}.`;
  end("Ready.");
}

const HANDLERS = {
  ready: showReady,
  failed: ({ text }) => {
    setJob(null);
    fail(text);
  },
  ...views.text.handlers,
  ...views.network.handlers,
};

const worker = new Worker("worker.js");
worker.onmessage = ({ data }) => HANDLERS[data.type](data);
worker.onerror = (event) => {
  usable = false;
  setJob("load");
  fail(event.message ? `worker.js failed: ${event.message}` : "worker.js could not be loaded.");
};

async function take(file) {
  const bytes = await file.arrayBuffer();
  if (!begin("load", { name: file.name, bytes }, [bytes])) {
    fail("The model is at work: press Stop first, then give the file again.");
  }
}

for (const button of document.querySelectorAll("button.stop")) button.addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
$("file").addEventListener("change", ({ target }) => {
  if (target.files.length) take(target.files[0]);
  target.value = "";
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
});

job = null;
begin("load", {});

/** Let the browser keep the page for use without a network, and say whether it does. */
async function keep() {
  if (!navigator.serviceWorker) throw new Error("the page must come over https.");
  const registration = await navigator.serviceWorker.register("service.js");
  registration.installing?.addEventListener("statechange", ({ target }) => {
    if (target.state === "redundant" && !registration.active) sayNotKept("a file is another one.");
  });
  await navigator.serviceWorker.ready;
  $("kept").textContent = "Kept in this browser: opens without a network.";
}

function sayNotKept(reason) {
  $("kept").textContent = `Not kept for use without a network: ${reason}`;
}

keep().catch((error) => sayNotKept(error.message));
