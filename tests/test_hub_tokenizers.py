"""Tokenizers of others: tokens spell the text they are of, or it is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_checkpoint import make_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors as after

from sterna.export.runtime.generate import prompt_tokens
from sterna.model.tokens.files import fitted, tokenizer_from_json
from sterna.model.tokens.hub import HubTokenizer

TEXT = "The moth is in the mist, and grey. Zwölf Motten."
SPELLED = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(pieces: list[str] = SPELLED, **options: object) -> Tokenizer:
    """As GPT-2's; a merge for `th`, where it has the letters."""
    known = dict(zip([*pieces, "th"], range(len(pieces) + 1), strict=True))
    made = Tokenizer(models.BPE(known, [("t", "h")] if "t" in pieces else [], **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def metaspace(letters: str, unknown: str | None = "<unk>") -> Tokenizer:
    """As sentencepiece's without bytes: what has no token is one that stands for anything."""
    pieces = dict.fromkeys(["<unk>", "\u2581", *letters])
    made = Tokenizer(models.BPE(dict(zip(pieces, range(len(pieces)), strict=True)), [],
                                unk_token=unknown, fuse_unk=True))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return made


def lower() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.Lowercase()
    return made


def beginning(made: Tokenizer) -> Tokenizer:
    made.add_special_tokens(["<s>"])
    made.post_processor = after.Sequence([after.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))])])
    return made


@pytest.mark.parametrize("make", [lambda: beginning(byte_level()), lambda: make_tokenizer(320)])
@pytest.mark.parametrize("save", [
    lambda made: made.enable_truncation(8),
    lambda made: made.enable_padding(length=64),
    lambda made: made.enable_padding(length=64, direction="left"),
    lambda made: setattr(made.model, "dropout", 0.9)], ids=["cut", "behind", "before", "dropout"])
def test_what_a_file_has_saved_besides_does_not_act(
    make: Callable[[], Tokenizer], save: Callable[[Tokenizer], None],
) -> None:
    plain, saved = make(), make()
    save(saved)
    assert plain.to_str() != saved.to_str()
    plain, saved = HubTokenizer(plain.to_str()), HubTokenizer(saved.to_str())
    assert saved.begin == plain.begin != ()
    for _ in range(4):
        assert saved.encode(TEXT).tolist() == plain.encode(TEXT).tolist()


def test_a_unigram_model_does_not_draw_its_tokens() -> None:
    pieces = [("<unk>", 0.0), ("\u2581", -1.0), ("a", -1.0), ("aa", -1.5)]
    made = Tokenizer(models.Unigram(pieces, 0))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    content = json.loads(made.to_str())
    content["model"] |= {"alpha": 0.1, "nbest_size": 8}
    found = HubTokenizer(json.dumps(content))
    assert {tuple(found.encode("aaaa").tolist()) for _ in range(20)} == {(1, 3, 3)}


@given(st.text(st.sampled_from("thab T\u00e9\u4e16\u2581\n"), max_size=12))
@pytest.mark.parametrize(("make", "known"), [
    (byte_level, None), (lambda: make_tokenizer(320), "thab T\u00e9\u4e16\n"),
    (lambda: byte_level([*"thab", "\u0120", "\u010a"]), "thab \n"),
    (lower, "thab \u00e9\u4e16\u2581\n"),
    (lambda: metaspace("thabT\n"), "thabT \n"), (lambda: metaspace("thabT\n", None), "thabT \n")])
def test_a_text_is_spelled_or_its_first_unknown_character_named(
    make: Callable[[], Tokenizer], known: str | None, text: str,
) -> None:
    tokenizer = HubTokenizer(make().to_str())
    unknown = [i for i, character in enumerate(text) if known and character not in known]
    if unknown:
        with pytest.raises(ValueError, match="does not give the text back") as refused:
            tokenizer.encode(text)
        assert f"{text[unknown[0]]!r}, character {unknown[0]} of the text" in str(refused.value)
    else:
        assert tokenizer.decode(tokenizer.encode(text)) in (text, f" {text}")


@pytest.mark.parametrize(("text", "message"), [
    (b"a\xff", "not UTF-8: it has the byte 255 at offset 1"),
    ("a\ud800", "not UTF-8: character 1 of it is .*half of a character"),
    (5, "must be str or bytes")])
def test_what_is_no_text_is_refused(text: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HubTokenizer(byte_level().to_str()).encode(text)


@pytest.mark.parametrize(("make", "text"), [
    (byte_level, "a  caf\u00e9\t\t\u4e16\u754c \u4e16 \u2581x  "),
    (lambda: make_tokenizer(320), "a\u2581x\u00e9\u4e16\u754c\t\t  ")])
def test_added_tokens_spell_themselves(make: Callable[[], Tokenizer], text: str) -> None:
    """Of the GPT-NeoX family: rows of spaces and letters, found in the text before it is bytes."""
    made, added = make(), ["  ", "\t\t", "\u00e9", "\u4e16\u754c", "\u2581x"]
    made.add_tokens([AddedToken(each, normalized=False) for each in added])
    tokenizer = HubTokenizer(made.to_str())
    assert [tokenizer.spellings[made.token_to_id(each)] for each in added] == [
        each.encode() for each in added]
    tokens = tokenizer.encode(text)
    assert {made.token_to_id(each) for each in added} <= set(tokens.tolist())
    assert tokenizer.decode(tokens).removeprefix(" ") == text


def test_the_end_of_a_document_spells_nothing_and_is_never_in_a_text() -> None:
    made = byte_level()
    made.add_tokens(["<end>"])
    tokenizer = HubTokenizer(made.to_str(), made.token_to_id("<end>"))
    assert tokenizer.spellings[tokenizer.end_of_text] == b""
    with pytest.raises(ValueError, match="no token for '<', character 1 of the text"):
        tokenizer.encode("a<end>")


def test_numbers_without_a_token_spell_nothing() -> None:
    content = json.loads(byte_level().to_str())
    content["model"]["vocab"]["th"] = 300
    tokenizer = HubTokenizer(json.dumps(content))
    assert tokenizer.vocab == 301 == len(tokenizer.spellings)
    assert tokenizer.spellings[256:] == (b"",) * 44 + (b"th",)
    assert tokenizer.decode([300, 299, *tokenizer.encode("a")]) == "tha"
    larger = fitted(tokenizer, 320)     # a model whose embedding was padded
    assert (larger.vocab, larger.spellings[:301], larger.decode([319])) == (
        320, tokenizer.spellings, "")
    assert tokenizer_from_json(larger.to_json(), 320).spellings == larger.spellings
    assert fitted(larger, 301).sha256 == tokenizer.sha256
    with pytest.raises(ValueError, match="the tokenizer has 301 tokens, and the model 300"):
        fitted(tokenizer, 300)


def test_a_small_vocabulary_is_not_of_bytes() -> None:
    tokenizer = HubTokenizer(metaspace("thea").to_str())
    assert tokenizer.vocab == 6
    assert prompt_tokens("heat", tokenizer).tolist() == [[1, 3, 4, 5, 2]]
    with pytest.raises(ValueError, match=r"the prompt 'the moth': .* for 'm', character 4"):
        prompt_tokens("the moth", tokenizer)


def test_bytes_of_every_token_are_those_that_the_package_decodes() -> None:
    theirs = make_tokenizer(320)
    tokenizer = HubTokenizer(theirs.to_str(), 2)
    tokens = tokenizer.encode(TEXT)
    assert tokens.tolist() == theirs.encode(TEXT).ids[1:]
    assert tokenizer.begin == (1,)
    assert tokenizer.decode(tokens) == " " + TEXT == " " + theirs.decode(tokens.tolist())
    assert tokenizer.spellings[2] == b""
    level = HubTokenizer(byte_level().to_str())
    assert sorted(level.spellings[:-1]) == [bytes([value]) for value in range(256)]
    assert np.array_equal(level.encode(TEXT), level.encode(TEXT.encode()))


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"end_of_text must be .* got \[2, 3\]"):
        HubTokenizer(make_tokenizer(320).to_str(), [2, 3])
    with pytest.raises(ValueError, match="must be byte-level"):
        HubTokenizer(Tokenizer(models.WordLevel({"a": 0}, "a")).to_str())
    for text in ("", "[]", "{}", "{", os.devnull):
        with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
            HubTokenizer(text)
