"""``sterna generate CHECKPOINT.pt``: text from the float model of any mixers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sterna.cli.terminal.console import Stages, print_json, write
from sterna.cli.terminal.texts import check_prompts
from sterna.model.quantized.sampling import Sampler
from sterna.model.tokens.files import fitted
from sterna.model.tokens.tokenizer import TextStream

__all__ = ["generate_from_checkpoint"]


def generate_from_checkpoint(
    path: str, prompts: Sequence[str], tokens: int, samplers: Sequence[Sampler], *,
    quiet: bool, as_json: bool,
) -> int:
    """Continue every prompt, one after the other; ``samplers`` has one for each."""
    from sterna.export.runtime.arguments import prompt_tokens
    with Stages(quiet) as stage:
        stage(f"load {path}", quick=True)
        from sterna.model.stack.evaluate import sample_tokens
        from sterna.model.training.checkpoint import load_checkpoint
        checkpoint = load_checkpoint(path)
        model = checkpoint.model()
        tokenizer = fitted(checkpoint.tokenizer, model.config.vocab)
    check_prompts(prompts, model.config.vocab)
    rows = [prompt_tokens(prompt, tokenizer) for prompt in prompts]
    for block in model.blocks():    # before anything is written
        block.mixer.check_length(max(row.size for row in rows))
    results: list[dict[str, Any]] = []
    for prompt, row, sampler in zip(prompts, rows, samplers, strict=True):
        drawn: list[int] = []
        found = sample_tokens(model, row, tokens=tokens, sampler=sampler,
                              end_of_text=tokenizer.end_of_text)
        text = ""
        if not as_json:
            write(prompt)
        for piece in _texts(found, drawn, TextStream(tokenizer)):
            text += piece
            if not as_json:
                write(piece)
        if not as_json:
            write("\n" if prompt is prompts[-1] else "\n\n")
        results.append({"prompt": prompt, "text": text, "tokens": drawn})
    if as_json:
        print_json(results[0] if len(results) == 1 else results)
    return 0


def _texts(found: Iterator[int], drawn: list[int], stream: TextStream) -> Iterator[str]:
    """The text of the tokens, as far as it is certain; the tokens go to ``drawn``."""
    for token in found:
        drawn.append(token)
        yield stream.add([token])
    yield stream.end()
