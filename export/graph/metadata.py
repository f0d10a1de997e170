"""What a Sterna ONNX file says about itself.

In the model's metadata properties; and each layer's node says the numbers of its profile, as one
list, the attribute ``profile``. The compiled operators read each number by its name
(:func:`sterna.export.native.ops.with_ops`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum, StrEnum
from importlib.metadata import version

import onnx
from onnx import helper

from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.tokens.files import tokenizer_from_json
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = ["LAYER_FORMAT", "ONNX_FORMAT_VERSION", "PROFILE_ATTRIBUTE", "PROFILE_NAMES", "Form",
           "GraphInfo", "GraphKind", "OnnxFileError", "describe", "profile_numbers"]

ONNX_FORMAT_VERSION = 4
_FORMAT = "sterna onnx"
_TOKENIZER = "sterna.tokenizer"
LAYER_FORMAT = "sterna onnx layer"
"""What the file of one layer, without a language model around it, says that it is."""
_FLOAT_FORMAT = "sterna float onnx"     # of model/onnx_float, which needs torch
PROFILE_ATTRIBUTE = "profile"
"""The attribute of a node in a file: the values of :func:`profile_numbers`."""
_SIGNALS = ("x", "z", "h", "o", "p", "logit")
_WIDTHS = ("reciprocal_bits", "root_frac", "scale_frac", "mantissa_bits", "scale_bits",
           "sigmoid_frac", "sigmoid_segments")
PROFILE_NAMES = (*(f"{name}_{part}" for name in _SIGNALS for part in ("bits", "frac")), *_WIDTHS)
"""Names of the numbers, in the order of the list."""


class OnnxFileError(ValueError):
    """An ONNX file that cannot be used; the message says which and why."""


class GraphKind(Enum):
    """What one call of a graph computes."""

    STEP = "step"
    """One token for each sequence of a batch."""
    SEQUENCE = "sequence"
    """A whole row of tokens for each sequence of a batch."""


class Form(StrEnum):
    """How the arithmetic of a graph is spelled."""

    EXACT = "exact"
    """Equal to the integer reference on any runtime: 8-bit integer products."""
    EXACT_2BIT = "exact-2bit"
    """Equal to it where onnxruntime's 2-bit kernels do what they do on x86; tested at load."""
    FAST = "fast"
    """Float with 2-bit products: close to the reference, and the fastest without a library."""
    WEB = "web"
    """Equal to it, with products in float32: the fastest exact one under WebAssembly."""
    TRACED = "traced"
    """Equal to it, with every tensor of the reference as a value of the same name."""
    FLOAT32 = "float32"
    """Float with dense matrices: what the other forms are measured against."""

    @property
    def exact(self) -> bool:
        """Whether logits and state are the integers of the reference."""
        return self not in (Form.FAST, Form.FLOAT32)


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """The metadata of one graph, made from the quantised model with this SHA-256.

    ``profile`` is the name of the model's formats, ``shape`` that of a state less its batch,
    ``[layers, d]``, whose values have ``state_bits``; ``logit`` is the format of exact logits.
    """

    kind: GraphKind
    form: Form
    profile: str
    vocab: int
    shape: tuple[int, int]
    state_bits: int
    logit: FixedPoint
    model_sha256: str
    sterna_version: str
    tokenizer: Tokenizer = field(default=BYTES, compare=False)

    @classmethod
    def of(cls, model: QuantizedModel, kind: GraphKind, form: Form) -> GraphInfo:
        """Describe a graph of ``model``."""
        first = model.states[0]
        return cls(kind, form, model.profile_name, model.vocab, (len(model.states), first.width),
                   first.output.bits, model.logit, model.sha256, version("sterna"),
                   model.tokenizer)

    @property
    def exact(self) -> bool:
        """Whether logits and state are int32 and those of the integer reference."""
        return self.form.exact

    def to_properties(self) -> dict[str, str]:
        """The metadata properties, in a fixed order."""
        of_bytes = self.tokenizer.kind == BYTES.kind
        return {
            "sterna.format": _FORMAT,
            "sterna.format_version": str(ONNX_FORMAT_VERSION),
            "sterna.version": self.sterna_version,
            "sterna.graph": self.kind.value,
            "sterna.form": self.form.value,
            "sterna.profile": self.profile,
            "sterna.vocab": str(self.vocab),
            "sterna.state_shape": json.dumps(self.shape),
            "sterna.state_bits": str(self.state_bits),
            "sterna.logit": json.dumps(asdict(self.logit), sort_keys=True),
            "sterna.model_sha256": self.model_sha256,
            **({} if of_bytes else {_TOKENIZER: json.dumps(
                self.tokenizer.to_json(), sort_keys=True, separators=(",", ":"))}),
        }

    @classmethod
    def read(cls, proto: onnx.ModelProto) -> GraphInfo:
        """Read the metadata of a graph.

        Raises OnnxFileError if Sterna did not make the graph, or a Sterna with another file format
        did.
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
            vocab = int(found["sterna.vocab"])
            layers, d = map(int, json.loads(found["sterna.state_shape"]))
            state = FixedPoint(int(found["sterna.state_bits"]), 0)
            tokenizer = json.loads(found.get(_TOKENIZER, f'"{BYTES.kind}"'))
            return cls(
                GraphKind(found["sterna.graph"]), Form(found["sterna.form"]),
                found["sterna.profile"], vocab, (layers, d), state.bits,
                FixedPoint(**json.loads(found["sterna.logit"])),
                found["sterna.model_sha256"], found["sterna.version"],
                tokenizer_from_json(tokenizer, vocab))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise OnnxFileError(f"the metadata of the graph is damaged ({error})") from error


def describe(
    proto: onnx.ModelProto, model: QuantizedModel, kind: GraphKind, form: Form,
) -> GraphInfo:
    """Store the metadata of a graph of ``model`` in ``proto``; return it."""
    info = GraphInfo.of(model, kind, form)
    proto.producer_version = info.sterna_version
    proto.doc_string = (
        f"MatMul-free language model, {kind.value} graph, form {form.value}: "
        + ("equal bit for bit to" if form.exact else "an approximation of")
        + f" Sterna's integer reference (profile {model.profile_name}).")
    helper.set_model_props(proto, info.to_properties())
    return info


# Numbers of a profile -----------------------------------------------------------------


def profile_numbers(profile: NumericProfile) -> dict[str, int]:
    """``x_bits``, ``x_frac`` and so on of every format, then the widths, in their order."""
    formats = [getattr(profile, name) for name in _SIGNALS]
    numbers = [number for each in formats for number in (each.bits, each.frac)]
    return dict(zip(
        PROFILE_NAMES, [*numbers, *(getattr(profile, name) for name in _WIDTHS)], strict=True))
