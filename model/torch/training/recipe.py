"""Settings of a run: the recipe (every number that affects a step), the execution and the record;
and all of these by name, as in a recipe file (TOML) and ``--set`` of ``sterna train``. Without
torch.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from sterna.model.checks import check_whole, real_number
from sterna.model.config import ModelConfig
from sterna.model.files import read_text

__all__ = [
    "HELDOUT_BYTES", "ORDERS", "SCHEDULES", "SETTINGS", "Execution", "Recording", "TrainRecipe",
    "TrainSettings", "parse_setting", "read_settings",
]

ORDERS = ("random", "epoch")
"""How independent windows are placed: each drawn anew, anywhere, which suits small texts; or side
by side, all read once in shuffled order before any is read again."""
SCHEDULES = ("cosine", "two-stage")
"""How the learning rate falls: along a cosine, or in two straight lines, the second starting lower
and without weight decay (BitNet b1.58 2B4T, arXiv 2504.12285, section 2.2)."""

HELDOUT_BYTES = 1 << 16
"""Default number of bytes of held-out text to measure."""

_MOST_THREADS = 1024
_FIRST_STAGE = 0.5
_STAGES = ((1.0, 8 / 15), (1 / 3, 0.0))
"""Start and end of the learning rate in both stages, as fractions of the peak: those of that
report's small model, 1.5e-3 to 8e-4 and 5e-4 to zero."""


@dataclass(frozen=True, slots=True)
class TrainRecipe:
    """Training hyperparameters; the defaults were chosen by measurement for small models."""

    lr: float = 1e-2                    # peak learning rate
    embedding_lr_factor: float = 3.0    # factor on the learning rate of the embedding
    # The same for the gains of matrices; with 0 they stay at one, against overfitting.
    gain_lr_factor: float = 1.0
    batch: int = 8                      # windows per step
    window: int = 128                   # tokens predicted per window
    beta1: float = 0.9                  # of AdamW
    beta2: float = 0.99
    # Of projection matrices. Strong, to keep latent weights small relative to a step, so that codes
    # can still change late in training; without it a small text is soon memorised.
    weight_decay: float = 0.3
    warmup_steps: int = 50              # of linear warm-up
    final_lr_fraction: float = 0.02     # the learning rate falls to this fraction of its peak
    clip_norm: float = 1.0              # limit of the gradient norm
    # Whether each window continues the previous one with its recurrent state; otherwise windows
    # start from the zero state.
    carry_state: bool = False
    # Parts in which the windows of a step are read, one after the other, accumulating gradients:
    # less memory, and the same step but for rounding.
    accumulate: int = 1
    order: str = "random"               # one of ORDERS
    # Tokens per held-out window, each from the zero state. None: carry the state through the text
    # or, if it grows with the text, use the training window.
    eval_window: int | None = None
    schedule: str = "cosine"            # one of SCHEDULES
    # For this initial fraction of the budget neither weights nor activations of projections are
    # quantised. For ternary weights only.
    float_start: float = 0.2
    # Decay of the moving average of the weights, which is measured and used in their place; 0 for
    # no average. Lower in the first steps: (1 + step) / (10 + step).
    ema: float = 0.0
    # Initial probability that a window is drawn from the general text, if there is one; falls
    # linearly to zero at the end.
    general_share: float = 0.8
    # Whether the state is reset at the token that ends a document.
    reset_at_documents: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "embedding_lr_factor", "final_lr_fraction", "clip_norm"):
            value = real_number(name, getattr(self, name))
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, got {value}")
        for name, low in (("batch", 1), ("window", 1), ("warmup_steps", 0), ("accumulate", 1),
                          ("eval_window", 1)):
            if name != "eval_window" or self.eval_window is not None:
                check_whole(name, getattr(self, name), low, (1 << 31) - 1)
        for name in ("beta1", "beta2", "float_start", "ema"):
            if not 0.0 <= (value := real_number(name, getattr(self, name))) < 1.0:
                raise ValueError(f"{name} must be from 0 to below 1, got {value}")
        if not 0.0 <= real_number("general_share", self.general_share) <= 1.0:
            raise ValueError(f"general_share must be from 0 to 1, got {self.general_share}")
        for name in ("weight_decay", "gain_lr_factor"):
            if not 0.0 <= (value := real_number(name, getattr(self, name))) < math.inf:
                raise ValueError(f"{name} must be at least 0, got {value}")
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"schedule must be {' or '.join(SCHEDULES)}, got {self.schedule!r}")
        if self.accumulate > self.batch:
            raise ValueError(f"accumulate must be at most batch ({self.batch}), for every part "
                             f"has a window; got {self.accumulate}")
        for name in ("carry_state", "reset_at_documents"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.order not in ORDERS:
            raise ValueError(f"order must be {' or '.join(ORDERS)}, got {self.order!r}")
        if self.carry_state and self.order != "random":
            raise ValueError(f"order {self.order} is for windows that start from the zero state: "
                             f"with carry_state they follow each other")

    @classmethod
    def of(cls, weights: str, **given: Any) -> TrainRecipe:
        """The recipe for a kind of weights (``ModelConfig.weights``) with the ``given`` settings:
        float weights take smaller steps and little decay, as they have no codes to flip."""
        smaller = {"lr": 3e-3, "weight_decay": 0.1, "float_start": 0.0}
        return cls(**{**(smaller if weights == "float" else {}), **given})

    def carried_over(self, lr_width: int, width: int) -> TrainRecipe:
        """The recipe of a model of ``lr_width`` channels, transferred to ``width`` channels: the
        best learning rate is inversely proportional to the width (``benchmarks/lr_transfer.py``),
        as for hidden matrices with Adam in arXiv 2203.03466, table 3.

        >>> TrainRecipe(lr=0.01).carried_over(128, 512).lr
        0.0025
        """
        for name, value in (("lr_width", lr_width), ("width", width)):
            check_whole(name, value, 1, (1 << 31) - 1)
        return replace(self, lr=self.lr * lr_width / width)

    @property
    def tokens_per_step(self) -> int:
        """Tokens predicted in one step."""
        return self.batch * self.window

    def learning_rate(self, step: int, fraction: float) -> float:
        """Learning rate of step ``step`` (from 0) when ``fraction`` of the budget is used."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        low = self.final_lr_fraction
        if self.schedule == "cosine":
            part = low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction)))
        else:
            second = fraction >= _FIRST_STAGE
            begin, end = _STAGES[second]
            length = 1.0 - _FIRST_STAGE if second else _FIRST_STAGE
            within = min(1.0, (fraction - second * _FIRST_STAGE) / length)
            part = max(low, begin + (end - begin) * within)
        return self.lr * warm * part

    def decay(self, fraction: float) -> float:
        """Weight decay of a step when ``fraction`` of the budget is used."""
        over = self.schedule == "two-stage" and fraction >= _FIRST_STAGE
        return 0.0 if over else self.weight_decay


@dataclass(frozen=True, slots=True)
class Execution:
    """Settings that may change when a run is resumed: the result is the same but for rounding."""

    device: str | None = None   # a torch device; by default cuda if there is one, else cpu
    threads: int | None = None  # CPU threads; by default torch's number
    # How the model is distributed over the launched processes (distributed.LAYOUTS). None: ddp if
    # there is more than one.
    parallel: str | None = None
    # Whether blocks keep only their input and are recomputed in the backward pass: less memory,
    # about a third more work, the same numbers.
    checkpoint_activations: bool = False
    # Whether torch.compile compiles the blocks at the first step. They then use neither the
    # compiled kernels of this package nor Triton's; last digits differ.
    compile: bool = False

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_whole("threads", self.threads, 1, _MOST_THREADS)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a run measures, saves and records, and how often."""

    heldout_bytes: int = HELDOUT_BYTES  # bytes of held-out text to measure
    heldout_evaluations: int = 8        # number during the run, the end included; or
    heldout_steps: int | None = None    # (if given) steps between two; always one at the end
    checkpoint_seconds: float = 60.0    # between two checkpoints, and
    checkpoint_steps: int | None = None     # (if given) also in steps
    sample_every: int | None = None     # steps between two texts in samples.txt; None for none
    tensorboard: bool = False           # whether figures are also written for TensorBoard
    command: tuple[str, ...] = ()       # command that started the run, for its report

    def __post_init__(self) -> None:
        check_whole("heldout_bytes", self.heldout_bytes, 2)
        check_whole("heldout_evaluations", self.heldout_evaluations, 1)
        for name in ("heldout_steps", "checkpoint_steps", "sample_every"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        seconds = real_number("checkpoint_seconds", self.checkpoint_seconds)
        if not 0.0 <= seconds <= math.inf:
            raise ValueError(f"checkpoint_seconds must be at least 0, got {seconds}")


_OBJECTS = (ModelConfig, TrainRecipe, Execution, Recording)
_ELSEWHERE = {"vocab", "command"}       # given by the tokenizer and the command line
_LR_WIDTH = "lr_width"

SETTINGS: dict[str, Any] = {
    **{each.name: get_type_hints(kind)[each.name] for kind in _OBJECTS for each in fields(kind)
       if each.name not in _ELSEWHERE},
    _LR_WIDTH: int}
"""The type of every setting, by name. ``lr_width`` is not a field but the model width for which
``lr`` is given (:meth:`TrainRecipe.carried_over`)."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings by name, sorted into their objects."""

    config: ModelConfig
    recipe: TrainRecipe
    execution: Execution
    recording: Recording

    @classmethod
    def of(
        cls, base: ModelConfig, given: Mapping[str, Any], command: tuple[str, ...] = (),
    ) -> TrainSettings:
        """The settings ``given`` by name, overriding the defaults and those of ``base``.

        >>> TrainSettings.of(ModelConfig.named("tiny"), {"d": 64, "lr": 0.02}).recipe.lr
        0.02
        """
        given = {name: _checked(name, value) for name, value in given.items()}

        def of(kind: type) -> dict[str, Any]:
            return {each.name: given[each.name] for each in fields(kind) if each.name in given}

        config = replace(base, **of(ModelConfig))
        recipe = TrainRecipe.of(config.weights, **of(TrainRecipe))
        if _LR_WIDTH in given:
            recipe = recipe.carried_over(given[_LR_WIDTH], config.d)
        return cls(config, recipe, Execution(**of(Execution)),
                   Recording(**of(Recording), command=command))


def _checked(name: str, value: Any) -> Any:
    """The value, checked against the type of its setting; integers are accepted as floats."""
    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"there is no setting {name!r}: {hint}known are "
                         f"{', '.join(sorted(SETTINGS))}")
    kinds = get_args(SETTINGS[name]) or (SETTINGS[name],)
    if type(value) not in kinds and not (float in kinds and type(value) is int):
        words = " or ".join(_WORDS[each] for each in kinds if each in _WORDS)
        raise ValueError(f"{name} must be {words}, got {value!r}")
    return value if type(value) in kinds else float(value)


def parse_setting(text: str) -> tuple[str, Any]:
    """Name and value of ``name=value``; the value is parsed as TOML, else taken as text.

    >>> [parse_setting(each) for each in ("lr=1e-3", "order=epoch", "carry_state=true")]
    [('lr', 0.001), ('order', 'epoch'), ('carry_state', True)]
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"--set takes NAME=VALUE, such as lr=0.005, got {text!r}")
    try:
        found = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        found = {}
    return name.strip(), found["value"] if found.keys() == {"value"} else value.strip()


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings in a recipe file."""
    try:
        found = tomllib.loads(read_text(path, at_least=0).decode())
        for name, value in found.items():
            _checked(name, value)
    except ValueError as error:
        said = str(error)
        raise ValueError(said if str(path) in said else f"{path}: {said}") from error
    return found
