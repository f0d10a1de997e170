"""Does a runtime compute an exported file right? The file says so itself: Sterna is not needed.

`sterna export tiny -o tiny.onnx` makes the file. For another runtime change `run`.
"""

import hashlib
import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1] if len(sys.argv) > 1 else "tiny.onnx")
facts = session.get_modelmeta().custom_metadata_map


def run(tokens, state, logits_from):
    return session.run(["logits", "state_out"], {
        "tokens": tokens, "state": state, "logits_from": np.array([logits_from])})


test = json.loads(facts["sterna.self_test"])
states = [each for each in json.loads(facts["sterna.records"]) if each["kind"] == "recur"]
tokens = np.array(test["tokens"])
start = np.zeros((len(states), len(tokens), states[0]["width"]), dtype=np.int32)
logits, state = run(tokens, start, 0)
digest = hashlib.sha256(logits.astype("<i4").tobytes() + state.astype("<i4").tobytes())
right = [digest.hexdigest() == test["sha256"]]
right.append(np.array_equal(run(tokens, start, -1)[0], logits[:, -1:]))
for t in range(tokens.shape[1]):  # one token a call, of the first sequence alone
    one, start = run(tokens[:1, t:t + 1], start[:, :1], 0)
    right.append(np.array_equal(one, logits[:1, t:t + 1]))
print(f"onnxruntime {onnxruntime.__version__}: {'right' if all(right) else 'WRONG'}")
sys.exit(not all(right))
