// Text from an exported model in JavaScript, with onnxruntime-web in Node.
//
//   sterna export tiny -o tiny.onnx
//   npm install onnxruntime-web@1.30.0
//   node loop.mjs
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";

const PROMPT = Buffer.from("The for statement");
const TOKENS = 64;

ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(readFileSync("tiny.onnx"));
const [layers, , d] = session.inputMetadata[1].shape; // int32 [layers, batch, d]
let state = new ort.Tensor("int32", new Int32Array(layers * d), [layers, 1, d]);

const logits_from = new ort.Tensor("int64", [0n], [1]);

const text = [...PROMPT];
for (let step = 0; text.length < PROMPT.length + TOKENS; step++) {
  const tokens = new ort.Tensor("int64", [BigInt(text[step])], [1, 1]); // a token is a byte
  const { logits, state_out } = await session.run({ tokens, state, logits_from });
  state = state_out;
  if (step + 1 >= PROMPT.length) text.push(logits.data.indexOf(Math.max(...logits.data)));
}
console.log(Buffer.from(text).toString());
