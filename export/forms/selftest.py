"""The self-test in every file: the expected results of the graph, and a checksum.

The checksum shows that the file is as Sterna wrote it. The test shows that the runtime computes it
correctly: a few tokens of two sequences in one call, then of one alone, token by token, for which
runtimes have separate kernels. Exact graphs must give the integers of the reference, stored as a
SHA-256. Float graphs must give logits close to those of the same real numbers in float64; the
required closeness is in decibels.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import onnx

from sterna.export.float.reference import float_logits
from sterna.export.graph.file import OnnxFile
from sterna.export.graph.metadata import GraphInfo, OnnxFileError
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.entry import Entry
from sterna.model.quantized.integer import IntegerModel

__all__ = ["FORMULA", "SELF_TEST", "SelfTestError", "check_checksum", "check_integers",
           "check_self_test", "digest_of", "formula_values", "get_property", "record",
           "running_test", "sample_steps", "seal", "set_property", "signal_to_noise"]

SELF_TEST, _CHECKSUM = "sterna.self_test", "sterna.sha256"
_BATCH, _LENGTH = 2, 8
_DECIBELS = 25.0
"""Required of kernels that round activations to 8 bits: trained models reach about 35 dB."""
_MARGIN = 3.0
"""A model that amplifies the rounding may be this many decibels noisier than 8 bits make it."""


class Runner(Protocol):
    """A graph under a runtime."""

    batch: int | None
    """Sequences of every call, if their number is fixed."""

    def run(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run tokens ``[batch, length]``; all logits and the last state."""

    def prefill(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run tokens ``[batch, length]``; the last logits ``[batch, vocab]`` and the last state."""

    def step(
        self, tokens: np.ndarray, state: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run tokens ``[batch]``; logits ``[batch, vocab]`` and the state."""

    def start(self, batch: int) -> np.ndarray:
        """The initial state."""



class SelfTestError(OnnxFileError):
    """This runtime does not compute the results stated in the file."""


def record(proto: onnx.ModelProto, model: QuantizedModel, info: GraphInfo) -> None:
    """Store the test and the checksum in the metadata of ``proto``."""
    tokens = sample_steps(info.entry, _BATCH, _LENGTH)
    test: dict[str, object] = {info.entry.name: tokens.tolist()}
    if info.exact:
        test["sha256"] = digest_of(*IntegerModel(model).run(tokens))
    else:
        logits, rounded = (float_logits(model, tokens, saturate=False, quantises=each)[:, -1]
                           for each in (False, True))
        test["logits"] = [[round(value, 4) for value in row] for row in logits.tolist()]
        test["decibels"] = round(min(_DECIBELS, signal_to_noise(logits, rounded) - _MARGIN), 1)
    set_property(proto, SELF_TEST, json.dumps(test))
    seal(proto)


def seal(proto: onnx.ModelProto) -> None:
    """Store the checksum of a graph in its current form, as the last property, which ends its
    bytes."""
    for entry in [entry for entry in proto.metadata_props if entry.key == _CHECKSUM]:
        proto.metadata_props.remove(entry)
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True))
    proto.metadata_props.add(key=_CHECKSUM, value=digest.hexdigest())


def check_checksum(file: OnnxFile) -> None:
    """Check that a graph is unchanged.

    Raises OnnxFileError if it was edited or has no checksum.
    """
    proto = onnx.ModelProto()
    seal(proto)
    with memoryview(file.content) as content:
        end = content[-proto.ByteSize():]
        proto.metadata_props[0].value = hashlib.sha256(content[:-len(end)]).hexdigest()
        right = end == proto.SerializeToString()
    if not right:
        raise OnnxFileError(
            "the graph is not as Sterna wrote it (its checksum differs): it was edited, or "
            "saved again by another tool; export it again")


def check_self_test(proto: onnx.ModelProto, info: GraphInfo, graph: Runner) -> None:
    """Run the self-test of a graph.

    Raises SelfTestError if the results differ from those in the file or the runtime gives none;
    OnnxFileError if the test is missing or damaged.
    """
    try:
        test = json.loads(get_property(proto, SELF_TEST))
        tokens = np.array(test[info.entry.name], dtype=np.int64)
        expected = test["sha256"] if info.exact else np.array(test["logits"])
        required = 0.0 if info.exact else float(test["decibels"])
    except (KeyError, TypeError, ValueError) as error:
        raise OnnxFileError(f"the test in the file is damaged ({error})") from error
    with running_test():
        calls = _in_calls(len(tokens), graph.batch)
        logits, state = _joined([graph.run(tokens[call]) for call in calls])
        last, state_last = _joined([graph.prefill(tokens[call]) for call in calls])
        first = np.repeat(tokens[:1], graph.batch or 1, axis=0)
        rows, state_alone = [], graph.start(len(first))
        for token in np.moveaxis(first, 1, 0):
            row, state_alone = graph.step(token, state_alone)
            rows.append(row[:1])
        state_alone = state_alone[:, :1]
    if not info.exact:
        for found in (logits[:, -1], last):
            _check_close(expected, found, required)
        _check_close(expected[:1], rows[-1], required)
        return
    check_integers(str(expected), (logits, state), (
        (last, logits[:, -1]), (state_last, state), (np.stack(rows, 1), logits[:1]),
        (state_alone, state[:, :1])),
        "one token a call, or the last logits alone, does not give the integers that a whole row "
        "gives")


@contextmanager
def running_test() -> Iterator[None]:
    """Turn an error of the runtime into a SelfTestError."""
    try:
        yield
    except Exception as error:  # onnxruntime's exceptions derive from Exception only
        reason = " ".join(str(error).split())[:300]
        raise SelfTestError(f"the test in the file did not run ({reason})") from error


def check_integers(
    expected: str, results: Iterable[np.ndarray], same: Iterable[tuple[np.ndarray, np.ndarray]],
    difference: str,
) -> None:
    """Raise SelfTestError if the results have another digest than ``expected``, or one of the pairs
    ``same``, computed by other calls, differs: ``difference`` says how."""
    if digest_of(*results) != expected:
        raise SelfTestError(
            "the integers are not those of the reference in the test that the file carries")
    if any((one != other).any() for one, other in same):
        raise SelfTestError(f"{difference}, in the test that the file carries")


def _in_calls(count: int, batch: int | None) -> list[np.ndarray]:
    """The sequences of each call: all at once, or the fixed number, with some repeated."""
    size = batch or count
    return [*np.resize(np.arange(count), (-(-count // size), size))]


def _joined(calls: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and state of the test's sequences, from one or several calls."""
    logits, states = zip(*calls, strict=True)
    return np.concatenate(logits)[:_BATCH], np.concatenate(states, axis=1)[:, :_BATCH]


def _check_close(expected: np.ndarray, logits: np.ndarray, required: float) -> None:
    decibels = signal_to_noise(expected, logits)
    if not decibels >= required:
        raise SelfTestError(
            f"the logits of the test that the file carries agree with those stated to "
            f"{decibels:.0f} dB, which should be {required:.0f} dB or more")


def signal_to_noise(right: np.ndarray, got: np.ndarray) -> float:
    """Signal-to-noise ratio of ``got`` against ``right``, in decibels; infinite if equal."""
    noise = float(np.square(np.asarray(got, dtype=np.float64) - right).sum())
    signal = float(np.square(right).sum())
    if noise == 0.0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def sample_steps(entry: Entry, batch: int, length: int) -> np.ndarray:
    """Tokens spread over the vocabulary, int64 ``[batch, length]``; or frames ``[batch, length,
    channels]`` of all magnitudes."""
    row, t = np.indices((batch, length))
    if not entry.shape:
        return np.asarray((37 * t + 101 * row + 32) % (entry.high + 1))
    values = formula_values((batch, length, *entry.shape), entry.high.bit_length() + 1)
    return values >> (t % 8)[..., None]


FORMULA = (
    "i counts the values [batch, steps, columns] from 1; a = i * 2654435761 mod 2^32; "
    "b = (a xor (a >> 15)) * 2246822519 mod 2^32; value = (b >> (32 - bits)) - 2^(bits - 1)")


def formula_values(shape: Sequence[int], bits: int) -> np.ndarray:
    """Values of :data:`FORMULA`, int64 of ``bits`` signed bits."""
    mask = np.uint64((1 << 32) - 1)
    count = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
    a = count * np.uint64(2654435761) & mask
    b = (a ^ a >> np.uint64(15)) * np.uint64(2246822519) & mask
    values = (b >> np.uint64(32 - bits)).astype(np.int64) - (1 << (bits - 1))
    return values.reshape(*shape)


def digest_of(*arrays: np.ndarray) -> str:
    """SHA-256 of integers as little-endian int32."""
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(np.ascontiguousarray(values, dtype="<i4").tobytes())
    return digest.hexdigest()


def get_property(proto: onnx.ModelProto, key: str) -> str:
    """A metadata property, empty if missing."""
    return next((entry.value for entry in proto.metadata_props if entry.key == key), "")


def set_property(proto: onnx.ModelProto, key: str, value: str) -> None:
    """Store a metadata property."""
    for entry in proto.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    entry = proto.metadata_props.add()
    entry.key, entry.value = key, value
