// Text: fields, and what the model writes.

import { $, grouped } from "./dom.js";

function speedOf(tokens, seconds) {
  return `${grouped(tokens)} tokens` + (seconds > 0 ? `, ${grouped(tokens / seconds)} tokens/s` : "");
}

/** The view of a language model. `begin(job, content)` and `end(status)` are those of the page. */
export function textView(begin, end) {
  let written = null;     // the text node that grows

  /** Show that a model is there which has not written yet. */
  function show() {
    for (const name of ["speed", "given", "written"]) $(name).replaceChildren();
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
    end(`${stopped ? "Stopped" : "Done"}: ${speedOf(tokens, seconds)}.`);
  }

  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const [tokens, temperature, seed] =
      ["tokens", "temperature", "seed"].map((name) => Number($(name).value));
    if (!begin("write", { prompt: $("prompt").value, tokens, temperature, seed })) return;
    show();
    $("given").textContent = $("prompt").value;
    written = document.createTextNode("");
    $("written").replaceChildren(written);
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  });
  return { handlers: { text: showText, written: showWritten }, show };
}
