// The recorded run of the integer reference, repeated here and compared integer by integer.

import { Sampler } from "./sampler.js";

const FORMAT = 1;
const SAMPLES = 5;

/** Counts equal and unequal integers; keeps the first difference in words. */
class Comparison {
  integers = 0;
  mismatches = 0;
  first = null;

  add(expected, got, words) {
    this.integers += 1;
    if (expected !== got) {
      this.mismatches += 1;
      this.first ??= words();
    }
  }
}

/**
 * Run the tokens of `record` and compare logits, final state and drawn tokens.
 *
 * `model` has facts, tokenizer, reset(), step(token) and state. `pause(done, total)` is awaited after
 * every token; the run ends early if it resolves to false. Returns null then, or else
 * { tokens, unit, integers, mismatches, first, samples }: `unit` what a token is called, `first`
 * the first difference in words or null, `samples` [[name of the token, expected, got], ...], the
 * largest logits after the last token.
 */
export async function runCheck(model, record, pause) {
  const { config, logit_frac: logitFrac, exp_table: expTable } = model.facts;
  const { tokenizer } = model, { unit } = tokenizer;
  const nameOf = (token) => tokenizer.nameOf(token);
  const total = record.logits?.length;
  if (record.format !== FORMAT || !(total > 0) || record.tokens?.length !== total + 1 ||
      record.logits.some((row) => row.length !== config.vocab) ||
      record.state?.length !== config.layers * config.d) {
    throw new RangeError("check.json does not belong to this page: its shape is another.");
  }
  const found = new Comparison();
  const sampler = new Sampler(
    { temperature: record.temperature, seed: record.seed, logitFrac, expTable });
  let logits;
  model.reset();
  for (let t = 0; t < total; t += 1) {
    const token = record.tokens[t];
    logits = await model.step(token);
    const row = record.logits[t], drawn = record.tokens[t + 1];
    row.forEach((expected, i) => found.add(expected, logits[i], () =>
      `after ${unit} ${t + 1} of the text (${nameOf(token)}), the logit of ${nameOf(i)} ` +
      `should be ${expected} and is ${logits[i]}`));
    if (t + 1 >= record.prompt) {
      const choice = sampler.next(logits);
      found.add(drawn, choice, () =>
        `${unit} ${t + 2} of the text should be ${nameOf(drawn)} and ${nameOf(choice)} was drawn`);
    }
    if (!await pause(t + 1, total)) return null;
  }
  record.state.forEach((expected, i) => found.add(expected, model.state[i], () =>
    `in the final state, channel ${i % config.d} of layer ${Math.floor(i / config.d)} ` +
    `should be ${expected} and is ${model.state[i]}`));
  const last = record.logits[total - 1];
  const largest = last.map((_, i) => i).sort((a, b) => last[b] - last[a] || a - b);
  return {
    tokens: total, unit, integers: found.integers, mismatches: found.mismatches,
    first: found.first,
    samples: largest.slice(0, SAMPLES).map((i) => [nameOf(i), last[i], logits[i]]),
  };
}
