"""Time a step of training against the matrix products in it, with and without compiled kernels.

    python benchmarks/step_time.py [--config tiny] [--threads 1 2] [--repeats 40]

Interleaves a step with torch's operators, a step with the compiled kernels, and only the products
of a step, by torch (in its fastest form: see ``sterna.model.torch.training.train``). These are
three for each projection: its outputs, and the gradients of its inputs and of its weights. Prints
the best milliseconds of each and the ratios of the two steps to the products. Batch and window are
the recipe's. With several threads mind the load: they wait for each other.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import best_milliseconds, describe_machine
from torch import Tensor

from sterna.cli.terminal.tables import Table
from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.torch.native_cpu.kernels import cpu_kernels
from sterna.model.torch.network.kernels import Kernels, use_kernels
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.optimizer import adamw
from sterna.model.torch.training.recipe import TrainRecipe


def training_step(config: ModelConfig, kernels: Kernels | None) -> Callable[[], None]:
    """One step on windows of random tokens, as the training loop does it."""
    recipe = TrainRecipe()
    model = LanguageModel(config, seed=0)
    optimizer = adamw(model, recipe)
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(
        0, config.vocab, (recipe.window + 1, recipe.batch), generator=generator)
    state = model.initial_state(recipe.batch)

    def step() -> None:
        with use_kernels(kernels):
            logits, _ = model.forward_time_major(windows[:-1], state)
            loss = F.cross_entropy(logits.flatten(0, 1), windows[1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(
                model.parameters(), recipe.clip_norm, foreach=True)
            optimizer.step()
            loss.item()

    return step


def products_of_step(config: ModelConfig) -> Callable[[], None]:
    """Only the matrix products of a step."""
    tokens = TrainRecipe().tokens_per_step
    of_layer = [(3 * config.d, config.d), (config.d, config.d), (2 * config.dff, config.d),
                (config.d, config.dff)]
    generator = torch.Generator().manual_seed(0)
    operands: list[tuple[Tensor, Tensor, Tensor]] = []
    for rows, columns in [*of_layer * config.layers, (config.vocab, config.d)]:
        operands.append((
            torch.randint(-127, 128, (tokens, columns), generator=generator).float(),
            torch.randint(-1, 2, (rows, columns), generator=generator).float(),
            torch.randn(tokens, rows, generator=generator)))

    def products() -> None:
        for vectors, codes, _ in operands:
            vectors @ codes.t()
        for vectors, codes, grad in operands:
            grad @ codes
            grad.t() @ vectors

    return products


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", nargs="+", default=["tiny"], choices=NAMED_CONFIGS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    kernels = cpu_kernels(print)
    if kernels is None:
        parser.error("there are no compiled kernels to compare with")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, "
          f"{describe_machine()['processor']}, "
          f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores; best of {options.repeats}, ms")
    rows = []
    torch.set_float32_matmul_precision("medium")
    for name in options.config:
        config = ModelConfig.named(name)
        forms = {"products": products_of_step(config), "torch": training_step(config, None),
                 "kernels": training_step(config, kernels)}
        for threads in options.threads:
            torch.set_num_threads(threads)
            products, before, after = best_milliseconds(forms, options.repeats, threads).values()
            rows.append((name, threads, *(f"{figure:.2f}" for figure in (
                products, before, after, before / products, after / products, before / after))))
    Table(None, ("model", "threads", "products", "torch", "kernels", "torch / products",
                 "kernels / products", "torch / kernels"), rows).print(width=100)


if __name__ == "__main__":
    main()
