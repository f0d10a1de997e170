"""Specification of a unit, for the emitter, the simulator and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from sterna.hw.emit.folder import EmittedUnit, UnitDesign
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.emit.selftest.folder_test import Vectors
from sterna.hw.testbench.scoreboard import ScoredPhase
from sterna.hw.testbench.stimulus import (
    Activations,
    PhaseBuilder,
    Stimulus,
    reference_activations,
    short_vectors,
)
from sterna.model.quantized import QuantizedModel

__all__ = ["Sizes", "UnitSpec", "usual_phases"]

Sizes: TypeAlias = Mapping[str, Any]
"""Chosen sizes by name: ``{"lanes": 4, "trace": True}``. Others keep their default."""


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """A unit that can be emitted and simulated on its own."""

    name: str  #: on the command line: ``glu``
    summary: str  #: a short description
    module: str  #: name of its Verilog module
    #: Makes its frozen parameters from a model and sizes. Without ``own_sizes``, the keyword
    #: arguments of this function are the sizes of the unit, with their defaults; None means a
    #: default that depends on the model.
    params: Callable[..., Any]
    #: builds the component and the contents of its folder from a model and the parameters
    design: Callable[[QuantizedModel, Any], UnitDesign]
    #: inputs and expected outputs of a simulation; None for whole models, simulated otherwise
    stimulus: Stimulus | None
    tokens: int  #: default number of text tokens to simulate
    #: makes the words for the folder's self-test from a model and the unit, which is not
    #: written yet; None for short phases of the stimulus, or those of the design
    vectors: Callable[[QuantizedModel, EmittedUnit], Vectors | None] | None = None
    takes_frames: bool = False  #: whether it is for a network over frames, not a language model
    #: designs it behind registers, given a bus and a module name; None if unsupported
    registers: Callable[..., UnitDesign] | None = None
    own_sizes: Mapping[str, Any] | None = None  #: its sizes, with their defaults

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of the unit, with their defaults."""
        if self.own_sizes is not None:
            return dict(self.own_sizes)
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.params).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY}

    def check_emitted(self, emitted: EmittedUnit, sizes: Sizes) -> None:
        """Raise ValueError if a folder is another unit's, or if sizes are given for it."""
        if emitted.manifest.get("unit") != self.name:
            raise ValueError(f"emitted must be a {self.name} folder, got one of {emitted.module}")
        if sizes:
            raise ValueError(
                f"{', '.join(sizes)} cannot be given with emitted: that folder has its sizes")

    def check_sizes(self, sizes: Sizes) -> None:
        """Raise ValueError, listing the unit's sizes, for an unknown size."""
        own = list(self.sizes)
        strangers = [name for name in sizes if name not in own]
        if strangers:
            raise ValueError(
                f"unit {self.name} has no size {_listed(strangers)}: it has {_listed(own)}")

    def chosen(self, params: Any) -> dict[str, Any]:
        """The sizes that the parameters were made from."""
        return {name: getattr(params, name) for name in self.sizes}

    def params_for(self, model: QuantizedModel, sizes: Sizes) -> Any:
        """Return the parameters for a model; ValueError for a size that is unknown or does not fit
        the model, or from :meth:`check_model`.
        """
        self.check_model(model)
        self.check_sizes(sizes)
        return self.params(model, **sizes)

    def check_model(self, model: QuantizedModel) -> None:
        """Raise ValueError for a network with a unit of language models, or vice versa."""
        if model.is_network != self.takes_frames:
            raise ValueError(
                f"unit {self.name} is of a language model, and this is a network over "
                f"{model.entry}" if model.is_network else
                f"unit {self.name} is of a network over frames, and this is a language model")

    def tested_design(self, model: QuantizedModel, params: Any) -> UnitDesign:
        """Return the design with the self-test of its folder."""
        design = self.design(model, params)
        make = self.vectors or (self._short_vectors if self.stimulus is not None else None)
        return replace(design, extra={"unit": self.name, **design.extra},
                       vectors=partial(make, model) if make else design.vectors)

    def _short_vectors(self, model: QuantizedModel, draft: EmittedUnit) -> Vectors:
        assert self.stimulus is not None
        tokens = np.array([model.config.vocab // 3, model.config.vocab - 1])
        acts = reference_activations(model, tokens, self.stimulus.tensors(model))
        return short_vectors(
            UnitPorts.of(draft.manifest), self.stimulus.phases(model, draft, acts))


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in names)


def usual_phases(
    acts: Activations, builder: Callable[[Iterable[int]], PhaseBuilder],
    cut: Mapping[str, int], extremes: PhaseBuilder,
) -> list[ScoredPhase]:
    """The phases of a unit that takes vectors; ``builder`` sends those of some tokens.

    ``cut`` is the number of words of each stream before the reset in mid-vector.
    """
    first = builder([0])
    return [
        builder(range(acts.tokens)).phase("real vectors"),
        first.phase("no pauses", random_pauses=False),
        first.cut("cut in mid-vector", cut),
        first.phase("after a reset in mid-vector", reset=True),
        extremes.phase("extremes"),
    ]
