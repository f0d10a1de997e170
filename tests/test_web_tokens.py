"""Tokenizer and sampler of the page, under Node, against those of Python."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.export.forms.forms import build
from sterna.export.runtime.runtime import OnnxModel
from sterna.export.web import page
from sterna.export.web.page import record_reference
from sterna.model.config import ModelConfig
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.sampling import EXP_TABLE, Sampler
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.bpe_training import train_bpe
from sterna.model.tokens.tokenizer import ByteTokenizer, Tokenizer

SOURCES = Path(page.__file__).parent / "sources"
TRAINED = train_bpe([bundled_heldout(), "größer, κόσμος 世界".encode() * 9], 600)
DOUBLED = BytePairTokenizer([(97, 98), (98, 99), (256, 99), (97, 257), (258, 258)])
NODE = """
import { Decoder, Tokenizer } from "./text.js";
import { readFileSync } from "node:fs";
const { content, vocab, texts } = JSON.parse(readFileSync(0));
const tokenizer = new Tokenizer(content, vocab);
console.log(JSON.stringify({
  tokens: texts.map((text) => tokenizer.encode(text)),
  pieces: texts.map((text) => {
    const decoder = new Decoder(tokenizer);
    const pieces = tokenizer.encode(text).slice(1).map((token) => decoder.push([token]));
    return [...pieces, decoder.end()];
  }),
  names: tokenizer.spellings.map((_, token) => tokenizer.nameOf(token)),
}));
"""
PIECES = ("a", "abc", "the", " of", "ing", "23", " ", "  ", "\n", "\t", "\x0b", "\x00", "--",
          "größer", "世界", "κόσμος", "\x7f", "\xa0", "\u2003", "\ufeff", "😀")
texts = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"])).map("".join)


def run_in_node(folder: Path, script: str, said: Any = None) -> Any:
    """The JSON that a script writes last.

    It runs in ``folder``, whose modules it imports, and reads ``said`` as JSON from its standard
    input. Without Node the test is skipped.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "script.js").write_text(script)
    done = subprocess.run([node, "script.js"], cwd=folder, input=json.dumps(said),
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def drawn(lists: st.SearchStrategy[list]) -> list:
    """All that Hypothesis draws: Node is started once."""
    found: list = []

    @given(lists)
    def collect(each: list) -> None:
        found.extend(each)

    collect()
    return found


def in_node(folder: Path, tokenizer: Tokenizer, said: list[str]) -> dict:
    shutil.copy(SOURCES / "text.js", folder)
    return run_in_node(folder, NODE, {
        "content": page._tokenizer(tokenizer), "vocab": tokenizer.vocab, "texts": said})


@pytest.mark.parametrize("tokenizer", [TRAINED, DOUBLED, ByteTokenizer()], ids=[
    "trained", "two ways to a spelling", "bytes"])
def test_the_page_encodes_and_decodes_as_python_does(tmp_path, tokenizer):
    said = [bundled_heldout()[:3000].decode(errors="ignore"), "abcabc bcabc",
            *drawn(st.lists(texts.filter(bool)))]
    found = in_node(tmp_path, tokenizer, said)
    rows = [tokenizer.encode(text).tolist() for text in said]
    assert found["tokens"] == rows
    for pieces, row in zip(found["pieces"], rows, strict=True):
        assert "".join(pieces) == tokenizer.decode(row[1:])


def test_a_token_is_named_by_what_it_spells(tmp_path):
    tokenizer = BytePairTokenizer(
        [(32, 97), (10, 32), (195, 164), (195, 195)], end_of_text=True)
    names = in_node(tmp_path, tokenizer, ["a"])["names"]
    assert names[256:] == ["“ a”", "“\\n ”", "“ä”", "bytes 195 195", "end of text"]
    assert [names[token] for token in (97, 32, 10, 200)] == [
        "“a”", "space", "line end", "byte 200"]


@pytest.mark.parametrize("tokenizer", [TRAINED, ByteTokenizer(128)], ids=["pairs", "ASCII"])
def test_the_record_of_a_page_is_what_graph_and_sampler_give(profile, tokenizer):
    model = replace(random_model(ModelConfig(12, 2, 21, tokenizer.vocab), profile),
                    tokenizer=tokenizer)
    record = record_reference(model, 40)
    prompt = tokenizer.encode(page.CHECK_PROMPT).tolist()
    assert record["tokens"][:record["prompt"]] == prompt
    logits, state = OnnxModel(build(model, "web")).run(np.array([record["tokens"][:-1]]))
    assert logits[0].tolist() == record["logits"]
    assert state.reshape(-1).tolist() == record["state"]
    sampler = Sampler(temperature=record["temperature"], seed=record["seed"],
                      logit_frac=profile.logit.frac)
    assert [sampler(row) for row in logits[0, len(prompt) - 1:]] == record["tokens"][len(prompt):]


# The sampler --------------------------------------------------------------------------

SAMPLER = """
import { Sampler } from "./sampler.js";
import { readFileSync } from "node:fs";
const { cases, expTable, logitFrac } = JSON.parse(readFileSync(0));
console.log(JSON.stringify(cases.map(({ logits, temperature, seed }) => {
  const sampler = new Sampler({ temperature, seed, logitFrac, expTable });
  return [1, 2, 3, 4].map(() => sampler.next(Int32Array.from(logits)));
})));
"""
CASES = st.lists(st.fixed_dictionaries({
    "logits": st.lists(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-3000, 3000),
                       min_size=1, max_size=256),
    "temperature": st.just(0) | st.floats(0.01, 100) | st.sampled_from([0.01, 0.7, 1.0, 100]),
    "seed": st.integers(1, (1 << 32) - 1)}), min_size=40, max_size=80)


@pytest.mark.parametrize("logit_frac", [0, 8])
def test_the_sampler_of_the_page_draws_the_same_tokens(tmp_path: Path, logit_frac: int) -> None:
    # The seed 1 with equal logits makes the generator itself visible.
    cases = [{"logits": [0] * 256, "temperature": 1.0, "seed": 1}, *drawn(CASES)]
    expected = []
    for case in cases:
        sampler = Sampler(
            temperature=case["temperature"], seed=case["seed"], logit_frac=logit_frac)
        expected.append([sampler(np.array(case["logits"])) for _ in range(4)])
    shutil.copy(SOURCES / "sampler.js", tmp_path)
    assert run_in_node(tmp_path, SAMPLER, {
        "cases": cases, "expTable": EXP_TABLE.tolist(), "logitFrac": logit_frac}) == expected
