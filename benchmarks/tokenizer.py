"""How fast byte pairs are encoded: ours, in Python, beside the package `tokenizers`.

    python benchmarks/tokenizer.py [--vocab 1024 16384]

Both get the train part of the built-in text with the docstrings, and must give the same tokens.
Ours keeps the words that it has met, so that a new tokenizer is timed, and one that has met them
all. CPU seconds, the best of interleaved runs.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from sterna.model.corpus import builtin_corpus
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.bpe_training import package_tokenizer, train_bpe

RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, nargs="+", default=[1024, 16_384])
    text = builtin_corpus(docstrings=True).train
    print(f"Python {platform.python_version()}, tokenizers {version('tokenizers')}, "
          f"{len(text):,} bytes, best of {RUNS}")
    for vocab in parser.parse_args().vocab:
        trained = train_bpe([text], vocab)
        other = package_tokenizer(trained)
        seconds: dict[str, float] = {}

        def run(name: str, work: Callable[[], Any], seconds: dict[str, float] = seconds) -> Any:
            started = time.process_time()
            result = work()
            seconds[name] = min(seconds.get(name, 1e9), time.process_time() - started)
            return result

        for _ in range(RUNS):
            ours = BytePairTokenizer(trained.merges)
            tokens = run("new", lambda ours=ours: ours.encode(text)).tolist()
            run("words known", lambda ours=ours: ours.encode(text))
            assert tokens == run("tokenizers", lambda other=other: other.encode_batch_fast(
                [text.decode()]))[0].ids
        speeds = ", ".join(f"{name} {len(text) / each / 1e6:.1f}" for name, each in seconds.items())
        print(f"{vocab:,} tokens, MB/s: {speeds}; {len(text) / len(tokens):.2f} bytes a token")


if __name__ == "__main__":
    main()
