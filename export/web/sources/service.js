// Keeps the files of the page in the browser, so that it opens without a network.

// The SHA-256 of each file.
const FILES = @FILES@;
// How long the server may take to answer, and how long it is not waited for after it took longer.
const PATIENCE_MS = 4000, PAUSE_MS = 10000;
let silent = -Infinity;         // when it last took longer
const NAMES = Object.keys(FILES);
const OWN = `sterna ${registration.scope} `;
const CACHE = OWN + NAMES.map((name) => FILES[name].slice(0, 8)).join("");

async function isRight(name, response) {
  const digest = await crypto.subtle.digest("SHA-256", await response.arrayBuffer());
  const hex = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0"));
  return hex.join("") === FILES[name];
}

/** Keep a file as the server has it now, if it is the one that this script belongs to. */
async function keep(name) {
  const { headers, body } = await fetch(name, { cache: "no-cache" });
  const response = new Response(body, { headers });     // which tells of no redirection
  if (!await isRight(name, response.clone())) throw new Error(`${name} is another file`);
  await (await caches.open(CACHE)).put(name, response);
}

/** A kept file; undefined if it is missing or damaged. */
async function kept(name) {
  const response = await (await caches.open(CACHE)).match(name);
  return response && await isRight(name, response.clone()) ? response : undefined;
}

/** A file from the server, and if that does not answer or not soon, the kept one. */
async function answer(event, name) {
  const fetched = fetch(event.request.url, { cache: "no-cache" });
  try {
    const patience = performance.now() - silent < PAUSE_MS ? 0 : PATIENCE_MS;
    const late = new Promise((_, reject) => { setTimeout(() => reject(null), patience); });
    const response = await Promise.race([fetched, late]);
    event.waitUntil(kept(name).then((found) => found ?? keep(name)));
    // Browsers open no page from a response that tells of a redirection.
    return response.redirected ? new Response(response.body, response) : response;
  } catch (error) {
    if (error === null) silent = performance.now();
    const statusText = "missing or damaged in this browser: open the page once with a network";
    return await kept(name) ?? await fetched.catch(() => null) ??
      new Response(`${name}: ${statusText}`, { status: 503, statusText });
  }
}

addEventListener("install", (event) => {
  event.waitUntil(Promise.all(NAMES.map(keep)).then(() => skipWaiting()));
});

addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys()) {
      if (name.startsWith(OWN) && name !== CACHE) await caches.delete(name);
    }
    await clients.claim();
  })());
});

addEventListener("fetch", (event) => {
  const address = event.request.url.split(/[?#]/)[0];
  const name = address.slice(registration.scope.length) || "index.html";
  if (address.startsWith(registration.scope) && Object.hasOwn(FILES, name)) {
    event.respondWith(answer(event, name));
  }
});
