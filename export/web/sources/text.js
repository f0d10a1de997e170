// Between text and tokens, as model/tokens does it: bytes of UTF-8, or pairs that are merged.

const BYTES = 256;

/** The tokens of a model. `content` is "bytes" or the JSON of a tokenizer, with its `words`. */
export class Tokenizer {
  #vocab; #words; #merges = new Map();

  constructor(content, vocab) {
    this.#vocab = vocab;
    this.unit = content === "bytes" ? "byte" : "token";
    this.spellings = Array.from({ length: Math.min(BYTES, vocab) }, (_, byte) => [byte]);
    if (content === "bytes") return;
    this.#words = new RegExp(content.words, "g");
    const tokenOf = new Map();
    content.merges.forEach(([left, right], rank) => {
      const spelling = [...this.spellings[left], ...this.spellings[right]], key = String(spelling);
      if (!tokenOf.has(key)) {
        tokenOf.set(key, this.spellings.length);
        this.spellings.push(spelling);
      }
      this.#merges.set(pair(left, right), { rank, token: tokenOf.get(key) });
    });
    if (content.end_of_text) this.endOfText = this.spellings.push([]) - 1;
  }

  /** Return the tokens of a text; an empty one stands for a line end. */
  encode(text) {
    const encoder = new TextEncoder();
    for (const character of text) {
      if (encoder.encode(character).some((byte) => byte >= this.#vocab)) {
        throw new RangeError(this.#vocab === 128
          ? `This model knows ASCII only; the prompt has “${character}”. Take that out.`
          : `This model knows the bytes 0 to ${this.#vocab - 1}; the prompt has “${character}”.`);
      }
    }
    const bytes = encoder.encode(text || "\n");
    return this.#words ? this.#merged(bytes) : [...bytes];
  }

  #merged(bytes) {
    // A character for each byte, as the words are defined on bytes.
    const characters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
    return characters.match(this.#words).flatMap((word) => this.#mergeWord(word));
  }

  /** The tokens of one word: while there is a pair with a merge, the first merge's leftmost. */
  #mergeWord(word) {
    const tokens = Array.from(word, (character) => character.charCodeAt(0));
    for (;;) {
      let place = -1, best = { rank: Infinity };
      for (let at = 0; at + 1 < tokens.length; at += 1) {
        const found = this.#merges.get(pair(tokens[at], tokens[at + 1]));
        if (found && found.rank < best.rank) [place, best] = [at, found];
      }
      if (place < 0) return tokens;
      tokens.splice(place, 2, best.token);
    }
  }

  /** A token in words: what it spells if that can be seen, or else numbers of bytes. */
  nameOf(token) {
    if (token === this.endOfText) return "end of text";
    const bytes = this.spellings[token];
    if (bytes.length === 1) {
      const [byte] = bytes;
      return byte > 32 && byte < 127 ? `“${String.fromCharCode(byte)}”`
        : byte === 32 ? "space" : byte === 10 ? "line end" : `byte ${byte}`;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes));
      return `“${JSON.stringify(text).slice(1, -1)}”`;
    } catch {
      return `bytes ${bytes.join(" ")}`;
    }
  }
}

/** One number for a pair of tokens, which are below 65,536. */
function pair(left, right) {
  return left * 65536 + right;
}

/** A decoder of a stream of tokens; what is not UTF-8 becomes U+FFFD. */
export class Decoder {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true }); #spellings;

  constructor(tokenizer) {
    this.#spellings = tokenizer.spellings;
  }

  /** The text that `tokens` complete. */
  push(tokens) {
    const bytes = Uint8Array.from(tokens.flatMap((token) => this.#spellings[token]));
    return this.#decoder.decode(bytes, { stream: true });
  }

  /** What is left of a character that was cut off. */
  end() {
    return this.#decoder.decode();
  }
}
