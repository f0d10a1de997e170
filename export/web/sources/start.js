"use strict";
// A plain script: browsers run it even where they refuse modules, so it can say why.
(() => {
  const fail = (text) => {
    document.getElementById("status").textContent = "";
    document.getElementById("error").textContent = text;
  };
  if (location.protocol === "file:") {
    fail("This page was opened as a file, and browsers run no modules from files. Start a web " +
         "server in its folder, python -m http.server 8000, and open http://localhost:8000.");
    return;
  }
  const script = document.createElement("script");
  script.type = "module";
  script.src = "page.js";
  script.addEventListener("error", () => fail(
    "page.js could not be loaded. Either it is missing beside index.html, or the server does not " +
    "send .js files with the type text/javascript."));
  document.head.append(script);
})();
