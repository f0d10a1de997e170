// The integer sampler of model/quantized/sampling.py: the same tokens for the same logits and seed.

const BETA_FRAC = 10;
const MAX_HALVINGS = 17;      // 2^16 >> 17 is 0
const MAX_SEED = 2 ** 32 - 1;

/** Draws tokens from integer logits. */
export class Sampler {
  /**
   * `temperature` 0 is greedy, otherwise from 0.01 to 100; `seed` from 1 to 2^32 - 1;
   * `logitFrac` fraction bits of the logits; `expTable` 2^(-j/64) with 16 fraction bits.
   */
  constructor({ temperature, seed, logitFrac, expTable }) {
    if (!(temperature === 0 || (temperature >= 0.01 && temperature <= 100))) {
      throw new RangeError(`Temperature must be 0 or from 0.01 to 100, got ${temperature}.`);
    }
    if (!Number.isInteger(seed) || seed < 1 || seed > MAX_SEED) {
      throw new RangeError(`Seed must be a whole number from 1 to ${MAX_SEED}, got ${seed}.`);
    }
    this.greedy = temperature === 0;
    this.state = seed;
    this.expTable = expTable;
    this.shift = logitFrac + BETA_FRAC - 6;
    this.beta = this.greedy ? 0
      : Math.floor(Math.LOG2E / temperature * 2 ** BETA_FRAC + 0.5);
  }

  /** Unnormalised probabilities; the largest logit has 2^16. */
  weights(logits) {
    // Differences of int32 stay below 2^32, beta below 2^18: doubles hold the products exactly.
    const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const half = 2 ** (this.shift - 1), scale = 2 ** this.shift;
    return Array.from(logits, (logit) => {
      const u = Math.floor(((largest - logit) * this.beta + half) / scale);
      return this.expTable[u % 64] >> Math.min(Math.floor(u / 64), MAX_HALVINGS);
    });
  }

  /** The next token for `logits` [vocab]. */
  next(logits) {
    if (this.greedy) {
      let best = 0;
      for (let i = 1; i < logits.length; i += 1) {
        if (logits[i] > logits[best]) best = i;
      }
      return best;
    }
    let sum = 0;
    const cumulative = this.weights(logits).map((weight) => (sum += weight));
    // 32 random bits times the sum need more than a double has.
    const threshold = Number((BigInt(this.#random()) * BigInt(sum)) >> 32n);
    return cumulative.findIndex((value) => value > threshold);
  }

  /** Advance the xorshift32 generator. */
  #random() {
    let s = this.state;
    s ^= s << 13;
    s ^= s >>> 17;
    s ^= s << 5;
    this.state = s >>> 0;
    return this.state;
  }
}
