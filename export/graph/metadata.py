"""The metadata properties of a Sterna ONNX file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.metadata import version
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.entry import Entry, frame_integers
from sterna.model.quantized.records import (
    Add,
    Embedding,
    Project,
    Record,
    Recur,
    records_from_json,
    records_to_json,
)
from sterna.model.tokens.files import tokenizer_from_json
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = ["LAYER_FORMAT", "ONNX_FORMAT_VERSION", "RECORDS", "Form", "GraphInfo", "OnnxFileError",
           "describe"]

ONNX_FORMAT_VERSION = 5
_FORMAT = "sterna onnx"
RECORDS, _TOKENIZER = "sterna.records", "sterna.tokenizer"
_FRACTION_BITS = "sterna.fraction_bits"
LAYER_FORMAT = "sterna onnx layer"
"""Format name in the file of a single layer, without a language model."""
_FLOAT_FORMAT = "sterna float onnx"     # of model/torch/onnx_float, which needs torch


class OnnxFileError(ValueError):
    """An ONNX file that cannot be used; the message says which and why."""


class Form(StrEnum):
    """The arithmetic of a graph."""

    EXACT = "exact"
    """Equal to the integer reference on any runtime."""
    FAST = "fast"
    """Float with onnxruntime's 2-bit products: close to the reference."""

    @property
    def exact(self) -> bool:
        """Whether logits and state are the integers of the reference."""
        return self is not Form.FAST


@dataclass(frozen=True)
class GraphInfo:
    """The metadata of one graph, made from the quantised model with this SHA-256.

    ``one_token`` graphs take one token per call; ``profile`` is the name of the model's formats,
    which ``records`` hold. ``fraction_bits`` are those per channel of a network's frames.
    """

    form: Form
    one_token: bool
    profile: str
    records: Sequence[Record]
    model_sha256: str
    sterna_version: str
    tokenizer: Tokenizer = field(default=BYTES, compare=False)
    fraction_bits: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether logits and state are int32 and those of the integer reference."""
        return self.form.exact

    @property
    def entry(self) -> Entry:
        """The input of the graph at every step: tokens, or frames."""
        return Entry.of(self.records)

    @property
    def is_network(self) -> bool:
        """Whether it takes frames."""
        return bool(self.entry.shape)

    def integers(self, frames: Any) -> tuple[np.ndarray, int]:
        """As :meth:`~sterna.model.quantized.QuantizedModel.integers` of the network."""
        return frame_integers(
            frames, np.array(self.fraction_bits), self.entry.high.bit_length() + 1)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        first = self.records[0]
        assert isinstance(first, Embedding)
        return first.vocab

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a state without its batch: ``[layers, d]``."""
        return len(self._states), self._states[0].width

    @property
    def state_format(self) -> FixedPoint:
        """The format of an exact state."""
        return self._states[0].output

    @property
    def logit(self) -> FixedPoint:
        """The format of exact logits, or of results."""
        last = self.records[-1]
        assert isinstance(last, Project | Add)
        return last.output

    @property
    def _states(self) -> list[Recur]:
        return [record for record in self.records if isinstance(record, Recur)]

    def to_properties(self) -> dict[str, str]:
        """The metadata properties, in a fixed order."""
        of_bytes = self.tokenizer.kind == BYTES.kind
        frac = list(self.fraction_bits)
        return {
            "sterna.format": _FORMAT,
            "sterna.format_version": str(ONNX_FORMAT_VERSION),
            "sterna.version": self.sterna_version,
            "sterna.form": self.form.value,
            "sterna.one_token": json.dumps(self.one_token),
            "sterna.profile": self.profile,
            RECORDS: _compact(records_to_json(self.records)),
            "sterna.model_sha256": self.model_sha256,
            **({} if of_bytes else {_TOKENIZER: _compact(self.tokenizer.to_json())}),
            **({_FRACTION_BITS: _compact(frac)} if self.is_network else {}),
        }

    @classmethod
    def read(cls, proto: onnx.ModelProto) -> GraphInfo:
        """Read the metadata of a graph.

        Raises OnnxFileError if the graph was not made by Sterna, or by one with another file
        format.
        """
        found = {entry.key: entry.value for entry in proto.metadata_props}
        if found.get("sterna.format") == LAYER_FORMAT:
            raise OnnxFileError(
                "the graph is of a layer, not of a language model: onnxruntime runs it as it is, "
                "and sterna.export.check_layer tests it")
        if found.get("sterna.format") == _FLOAT_FORMAT:
            raise OnnxFileError(
                "the graph is of the float model of a checkpoint: onnxruntime runs it as it is, "
                "and sterna generate CHECKPOINT.pt writes its text")
        if found.get("sterna.format") != _FORMAT:
            raise OnnxFileError("not an ONNX graph made by Sterna (its metadata is missing)")
        if found.get("sterna.format_version") != str(ONNX_FORMAT_VERSION):
            raise OnnxFileError(
                f"the graph has format version {found.get('sterna.format_version')!r}, this "
                f"Sterna reads version {ONNX_FORMAT_VERSION}; export it again")
        try:
            records = records_from_json(json.loads(found[RECORDS]))
            info = cls(
                Form(found["sterna.form"]), bool(json.loads(found["sterna.one_token"])),
                found["sterna.profile"], records, found["sterna.model_sha256"],
                found["sterna.version"])
            if info.is_network:
                frac = [int(each) for each in json.loads(found[_FRACTION_BITS])]
                if len(frac) != info.entry.shape[0]:
                    raise ValueError(f"{_FRACTION_BITS} are {len(frac)} numbers")
                return replace(info, fraction_bits=tuple(frac))
            tokenizer = json.loads(found.get(_TOKENIZER, f'"{BYTES.kind}"'))
            return replace(info, tokenizer=tokenizer_from_json(tokenizer, info.vocab))
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError,
                RecursionError) as error:
            raise OnnxFileError(f"the metadata of the graph is damaged ({error})") from error


def describe(
    proto: onnx.ModelProto, model: QuantizedModel, form: Form, one_token: bool = False,
) -> GraphInfo:
    """Store the metadata of a graph of ``model`` in ``proto``; return it."""
    info = GraphInfo(form, one_token, model.profile_name, model.records, model.sha256,
                     version("sterna"), model.tokenizer,
                     tuple(model.fraction_bits.tolist()) if model.is_network else ())
    proto.producer_version = info.sterna_version
    proto.doc_string = (
        f"MatMul-free {'network' if model.is_network else 'language model'}, form {form.value}: "
        + ("equal bit for bit to" if form.exact else "an approximation of")
        + f" Sterna's integer reference (profile {model.profile_name}).")
    helper.set_model_props(proto, info.to_properties())
    return info


def _compact(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))
