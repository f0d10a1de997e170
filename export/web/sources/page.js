// The page itself: fields, buttons and what they show. The work is done in worker.js.

const $ = (id) => document.getElementById(id);
const format = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const BUTTONS = { write: $("write"), stop: $("stop"), check: $("check") };

let job = "load";       // "load", "write", "check", "broken", or null: the page waits
let written = null;     // the text node that grows

function setJob(next) {
  job = next;
  const usable = {
    write: job === null, check: job === null, stop: job === "write" || job === "check" };
  // Not `disabled`: a button that vanishes from the keyboard takes the focus with it.
  for (const [name, button] of Object.entries(BUTTONS)) {
    button.setAttribute("aria-disabled", String(!usable[name]));
  }
  $("text").classList.toggle("running", job === "write");
  $("check-progress").hidden = job !== "check";
}

function fail(text) {
  $("error").textContent = text;
  $("status").textContent = "";
}

function startWriting() {
  if (job !== null) return;
  $("error").textContent = "";
  $("status").textContent = "Writing.";
  $("speed").textContent = "";
  $("given").textContent = $("prompt").value;
  written = document.createTextNode("");
  $("written").replaceChildren(written);
  setJob("write");
  worker.postMessage({
    type: "write", prompt: $("prompt").value, tokens: Number($("tokens").value),
    temperature: Number($("temperature").value), seed: Number($("seed").value) });
}

function startChecking() {
  if (job !== null) return;
  $("error").textContent = "";
  $("verdict").textContent = "Comparing.";
  delete $("verdict").dataset.equal;
  $("samples").hidden = true;
  $("check-progress").value = 0;
  setJob("check");
  worker.postMessage({ type: "check" });
}

function stop() {
  if (job === "write" || job === "check") worker.postMessage({ type: "stop" });
}

function speedOf(tokens, seconds) {
  return `${format(tokens)} tokens` + (seconds > 0 ? `, ${format(tokens / seconds)} tokens/s` : "");
}

function showText({ text, tokens, seconds }) {
  const box = $("text");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  written.appendData(text);
  if (atEnd) box.scrollTop = box.scrollHeight;
  $("speed").textContent = speedOf(tokens, seconds);
}

function showWritten({ tokens, seconds, stopped }) {
  $("speed").textContent = "";      // said in the status, which is read aloud
  $("status").textContent = `${stopped ? "Stopped" : "Done"}: ${speedOf(tokens, seconds)}.`;
  setJob(null);
}

function changeInWords(changed) {
  if (!changed?.length) return "";
  return ` (${changed.join(" and ")} ${changed.length > 1 ? "are not the files" : "is not the file"} ` +
    "that sterna web wrote.)";
}

function showChecked({ result }) {
  setJob(null);
  const verdict = $("verdict");
  if (!result) {
    verdict.textContent = "Stopped before the end.";
    return;
  }
  verdict.dataset.equal = String(result.mismatches === 0);
  verdict.textContent = result.mismatches === 0
    ? `${format(result.integers)} integers equal, over ${format(result.tokens)} ${result.unit}s of text.`
    : `Not the same: ${format(result.mismatches)} of ${format(result.integers)} integers differ. ` +
      `First: ${result.first}.${changeInWords(result.changed)}`;
  $("samples").tBodies[0].replaceChildren(...result.samples.map(([name, expected, got]) => {
    const row = document.createElement("tr");
    row.classList.toggle("differs", expected !== got);
    for (const text of [name, expected, got]) row.insertCell().textContent = text;
    return row;
  }));
  $("samples").hidden = false;
}

function showFacts(facts) {
  const { d, layers, dff, vocab } = facts.config;
  $("facts").textContent =
    `${format(facts.ternary_weights)} ternary weights: d ${d}, ${layers} layers, dff ${dff}, ` +
    `vocabulary ${vocab}, profile ${facts.profile}. Model ${facts.model_sha256.slice(0, 12)}. ` +
    `Sterna ${facts.version}, onnxruntime-web ${facts.onnxruntime_web}, one thread.`;
}

function showBroken(text) {
  setJob("broken");
  fail(text);
}

const HANDLERS = {
  loading: ({ text }) => { $("status").textContent = text; },
  ready: ({ facts }) => {
    showFacts(facts);
    $("status").textContent = "Ready.";
    setJob(null);
  },
  broken: ({ text }) => showBroken(text),
  failed: ({ text }) => {
    $("speed").textContent = "";
    $("verdict").textContent = "";
    setJob(null);
    fail(text);
  },
  text: showText,
  written: showWritten,
  checking: ({ done, total }) => { $("check-progress").value = done / total; },
  checked: showChecked,
};

let worker;
try {
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => HANDLERS[data.type](data);
  worker.onerror = (event) => showBroken(event.message
    ? `worker.js failed: ${event.message}`
    : "worker.js could not be loaded, or a file that it needs (check.js, model.js, sampler.js, " +
      "text.js). The page needs every file that sterna web wrote, sent as text/javascript, and a " +
      "browser from 2023 or later.");
} catch (error) {
  showBroken(`This browser runs no module workers (${error.message}); use one from 2023 or later.`);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  startWriting();
});
$("stop").addEventListener("click", stop);
$("check").addEventListener("click", startChecking);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
