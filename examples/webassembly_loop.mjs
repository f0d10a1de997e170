// Text from a model in WebAssembly, in Node or any other runtime that has these functions.
//
//   sterna web tiny -o page
//   node webassembly_loop.mjs
import { readFileSync } from "node:fs";

const PROMPT = new TextEncoder().encode("The for statement");
const TOKENS = 64;

const { instance } = await WebAssembly.instantiate(readFileSync("page/model.wasm"));
const { memory, test, start, step, sample, encode, decode, text_at, tokens_at } = instance.exports;
if (!test()) throw new Error("the self-test failed");

new Uint8Array(memory.buffer, text_at()).set(PROMPT);
const tokens = new Int32Array(memory.buffer, tokens_at(), encode(PROMPT.length));
start(0, 1); // the temperature: 0 takes the most likely token; and the seed
for (const token of tokens) step(token);

const text = [...PROMPT];
for (let count = 0; count < TOKENS; count++) {
  const token = sample();
  text.push(...new Uint8Array(memory.buffer, text_at(), decode(token)));
  step(token);
}
console.log(Buffer.from(text).toString());
