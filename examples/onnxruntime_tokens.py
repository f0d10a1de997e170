"""Text in byte pairs, without Sterna: `sterna export tiny-bpe -o tiny-bpe.onnx` makes the file."""

import json
import re
from itertools import pairwise

import numpy as np
import onnxruntime

PROMPT, TOKENS = b"The for statement", 32
WORD = (rb" ?[A-Za-z\x80-\xff]+| ?[0-9]+| ?[^\t-\r 0-9A-Za-z\x80-\xff]+"
        rb"|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+")  # docs/file-format.md has the rules

session = onnxruntime.InferenceSession("tiny-bpe.onnx")
facts = session.get_modelmeta().custom_metadata_map
merges = [tuple(pair) for pair in json.loads(facts["sterna.tokenizer"])["merges"]]
spellings = [bytes([byte]) for byte in range(256)]
for left, right in merges:
    if (spelling := spellings[left] + spellings[right]) not in spellings:
        spellings.append(spelling)


def encode(word):
    tokens = list(word)
    while found := set(pairwise(tokens)) & set(merges):
        pair = min(found, key=merges.index)
        at = next(at for at in range(len(tokens)) if tuple(tokens[at:at + 2]) == pair)
        tokens[at:at + 2] = [spellings.index(spellings[pair[0]] + spellings[pair[1]])]
    return tokens


layers, _, d = session.get_inputs()[1].shape  # the state is int32 [layers, batch, d]
state = np.zeros((layers, 1, d), dtype=np.int32)
text = [token for word in re.findall(WORD, PROMPT) for token in encode(word)]
for step in range(len(text) + TOKENS - 1):
    logits, state = session.run(None, {
        "tokens": np.array([[text[step]]]), "state": state, "logits_from": np.array([0])})
    if step + 1 == len(text):
        text.append(int(logits.argmax()))
print(b"".join(spellings[token] for token in text).decode(errors="replace"))
