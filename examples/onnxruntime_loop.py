"""Text from an exported model, with onnxruntime and numpy alone: no Sterna where it runs.

`sterna export tiny -o tiny.onnx` has made the file.
"""

import numpy as np
import onnxruntime

PROMPT, TOKENS = b"The for statement", 64

session = onnxruntime.InferenceSession("tiny.onnx")
_, memory = session.get_inputs()  # the token, and the state: int32 [layers, batch, d]
layers, _, d = memory.shape
state = np.zeros((layers, 1, d), dtype=np.int32)

text = bytearray()
token = None
for step in range(len(PROMPT) + TOKENS - 1):
    token = PROMPT[step] if step < len(PROMPT) else text[-1]  # a token is a byte
    logits, state = session.run(None, {"token": np.array([token]), "state": state})
    if step >= len(PROMPT) - 1:
        text.append(logits[0].argmax())
print((PROMPT + text).decode(errors="replace"))
