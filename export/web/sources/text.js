// The byte tokenizer of model/tokenizer.py: a token is one byte of UTF-8 text.

/** Return the tokens of a text; an empty one stands for a line end. */
export function encode(text, vocab) {
  const encoder = new TextEncoder();
  for (const character of text) {
    const bytes = encoder.encode(character);
    if (bytes.some((byte) => byte >= vocab)) {
      throw new RangeError(vocab === 128
        ? `This model knows ASCII only; the prompt has “${character}”. Take that out.`
        : `This model knows the bytes 0 to ${vocab - 1}; the prompt has “${character}”.`);
    }
  }
  return encoder.encode(text || "\n");
}

/** A decoder of a stream of bytes; what is not UTF-8 becomes U+FFFD. */
export class Decoder {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  /** The text that `bytes` complete. */
  push(bytes) {
    return this.#decoder.decode(Uint8Array.from(bytes), { stream: true });
  }

  /** What is left of a character that was cut off. */
  end() {
    return this.#decoder.decode();
  }
}

/** A byte in words: its character if it can be seen, or else its number. */
export function nameOf(token) {
  return token > 32 && token < 127 ? `“${String.fromCharCode(token)}”`
    : token === 32 ? "space" : token === 10 ? "line end" : `byte ${token}`;
}
