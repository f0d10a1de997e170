"""Text from an exported model, by onnxruntime and numpy alone: Sterna is not needed to run it.

`sterna export tiny -o tiny.onnx` makes the file.
"""

import numpy as np
import onnxruntime

PROMPT, TOKENS = b"The for statement", 64

session = onnxruntime.InferenceSession("tiny.onnx")
layers, _, d = session.get_inputs()[1].shape  # the state is int32 [layers, batch, d]
state = np.zeros((layers, 1, d), dtype=np.int32)

text = list(PROMPT)  # a token is a byte
for step in range(len(PROMPT) + TOKENS - 1):
    logits, state = session.run(None, {
        "tokens": np.array([[text[step]]]), "state": state, "logits_from": np.array([0])})
    if step + 1 == len(text):
        text.append(int(logits.argmax()))
print(bytes(text).decode(errors="replace"))
