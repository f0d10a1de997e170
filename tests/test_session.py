"""Sessions: text, states, and what they refuse."""

import time

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.export import Session
from sterna.export.forms.forms import Form, build, export_onnx
from sterna.export.runtime.generate import StopStrings, generate_tokens
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import Sampler
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    """A small random model with a vocabulary of bytes."""
    return random_model(ModelConfig(d=24, layers=2, dff=40), S16, seed=6)


@pytest.fixture(scope="module")
def session(model: QuantizedModel) -> Session:
    """Its exact form."""
    return Session(build(model))


@pytest.fixture(scope="module")
def tiny() -> Session:
    """The bundled model, which ends sentences."""
    return Session(build(load_model("tiny")))


@pytest.mark.parametrize("one_token", [False, True], ids=["any", "one token"])
@pytest.mark.parametrize("form", Form, ids=lambda form: form.value)
def test_every_form_loads_from_files_and_goes_on_from_a_saved_state(
    model, form, one_token, tmp_path,
):
    session = Session(export_onnx(model, tmp_path / "m.onnx", form=form, one_token=one_token))
    assert session.info.form == form.value
    tokens = np.arange(40).reshape(4, 10)
    logits, before = session.prefill(tokens[:, :6])
    state = session.load_state(session.save_state(before))
    np.testing.assert_array_equal(state, before)
    for t in range(6, 10):
        logits, state = session.step(tokens[:, t], state)
    expected, last = IntegerModel(model).run(tokens)
    if form.exact:
        np.testing.assert_array_equal(logits, expected[:, -1])
        np.testing.assert_array_equal(state, last)
    else:
        assert before.dtype == logits.dtype == state.dtype == np.float32
        assert np.corrcoef(logits.ravel(), expected[:, -1].ravel())[0, 1] > 0.9


def test_a_long_prompt_goes_in_pieces(model, session):
    tokens = np.random.default_rng(2).integers(0, 256, (1, 600))
    expected, last = IntegerModel(model).run(tokens)
    for method, right in ((session.run, expected), (session.prefill, expected[:, -1])):
        logits, state = method(tokens)
        np.testing.assert_array_equal(logits, right)
        np.testing.assert_array_equal(state, last)


def test_options_of_onnxruntime_can_be_given(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = Session(build(model), options=options)
    expected, _ = IntegerModel(model).run(np.array([[1, 2, 3]]))
    np.testing.assert_array_equal(plain.run(np.array([[1, 2, 3]]))[0], expected)


# Text ------------------------------------------------------------------------------


@pytest.mark.parametrize("one_token", [False, True], ids=["any", "one token"])
@pytest.mark.parametrize("sizes", [{"batch": 1}, {"batch": 3}, {"batch": 1, "length": 1}], ids=str)
@pytest.mark.parametrize("form", Form, ids=lambda form: form.value)
def test_a_session_runs_and_tests_within_fixed_sizes(model, form, sizes, one_token):
    """As compilers for a device want them: fixed by an option here, or by a tool in the file."""
    def fixed(**sizes: int) -> Session:
        options = onnxruntime.SessionOptions()
        for name, size in sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        return Session(build(model, form, one_token=one_token), options=options, allow_slow=True)
    session, free = fixed(**sizes), fixed()
    tokens = np.arange(10 * sizes["batch"]).reshape(-1, 10)
    for one, other in zip(session.run(tokens), free.run(tokens), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match=f"is fixed to {sizes['batch']}, got 2"):
        session.run(tokens[[0, 0]])
    if not one_token:
        with pytest.raises(ValueError, match="16 tokens a call are fixed"):
            fixed(length=16)


def test_text_is_what_reference_and_sampler_draw(model, session):
    reference, sampler = IntegerModel(model), Sampler(temperature=0.7, seed=5)
    logits, state = reference.run(encode("ab")[None])
    row, expected = logits[:, -1], []
    for _ in range(20):
        expected.append(sampler(row[0]))
        row, state = reference.step(np.array(expected[-1:]), state)
    pieces = list(session.generate("ab", tokens=20, seed=5))
    assert [piece.token for piece in pieces] == expected
    assert [piece.end for piece in pieces] == [None] * 19 + ["length"]
    assert expected == list(generate_tokens(session, "ab", tokens=20, seed=5))
    text = bytes(expected).decode("utf-8", "replace")
    assert ["".join(piece.text for piece in pieces)] == [text] == session.complete(
        "ab", tokens=np.int64(20), seed=np.uint8(5), temperature=np.float32(0.7))


def test_prompts_side_by_side_are_as_alone(tiny):
    prompts = ["The for statement", "", "def "]
    together = tiny.complete(prompts, tokens=50, seed=9)
    for index, prompt in enumerate(prompts):
        assert tiny.complete(prompt, tokens=50, seed=9 + index) == [together[index]]


def test_one_prompt_may_stop_while_others_go_on(tiny):
    prompts = ["The for statement", "def "]
    whole = tiny.complete(prompts, tokens=60)
    word = whole[0].split()[2]
    stopped = tiny.complete(prompts, tokens=60, stop=[word])
    assert stopped[0] == whole[0][:whole[0].index(word)]
    assert stopped[1] == whole[1].partition(word)[0]
    assert len(stopped[0]) < len(whole[0])


def test_the_beginning_of_a_stop_string_is_held_back(tiny):
    text = tiny.complete(["The for statement"], tokens=60)[0]
    stop = text[20:26]
    assert min(map(text.index, stop)) < text.index(stop), "its characters come earlier"
    assert tiny.complete("The for statement", tokens=60, stop=stop) == [text[:text.index(stop)]]
    seen = ""
    for piece in tiny.generate("The for statement", tokens=60, stop=[stop, "never"]):
        seen += piece.text
        assert not any(seen.endswith(stop[:size]) for size in range(1, len(stop))) or (
            piece.end == "stop")
    assert (seen, piece.end) == (text[:text.index(stop)], "stop")
    # One that never comes to its end is given out when the tokens end.
    last = text[-3:] + "\0"
    pieces = list(tiny.generate("The for statement", tokens=60, stop=[last]))
    assert "".join(piece.text for piece in pieces) == text
    assert pieces[-1].text.endswith(text[-3:])


def test_long_stop_strings_cost_no_more_than_short_ones(session):
    started = time.process_time()
    text = session.complete("ab", tokens=20)
    plain = time.process_time() - started
    # All of them begin as the text does, so that each has to be followed.
    stops = [text[0][:1] + chr(33 + index) * 20_000 for index in range(50)]
    started = time.process_time()
    assert session.complete("ab", tokens=20, stop=stops) == text
    assert time.process_time() - started < plain + 1.0, "it took ten seconds"


@given(stops=st.lists(st.text("ab", min_size=1, max_size=6), max_size=3),
       pieces=st.lists(st.text("ab", max_size=4), max_size=12))
def test_stop_strings_are_found_as_by_looking_through_all(stops, pieces):
    finder, text = StopStrings(stops), ""
    for piece in pieces:
        text += piece
        begins = [text.index(stop) for stop in stops if stop in text]
        assert finder.find(piece) == (len(text) - min(begins) if begins else None)
        if begins:
            return
        assert finder.open == max((
            size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])),
            default=0)


@pytest.mark.parametrize(("settings", "message"), [
    ({"tokens": 0}, "tokens must be a whole number from 1, got 0"),
    ({"temperature": -0.5}, r"temperature must be 0 or from 0\.01"),
    ({"top_k": 0}, "top_k must be a whole number from 1"),
    ({"top_p": 1.5}, "top_p must be above 0"),
    ({"stop": [""]}, "stop string must not be empty"),
    ({"seed": 0}, "seed must be a whole number from 1"),
    ({"tokens": 2.5}, "tokens must be a whole number from 1, got 2.5"),
    ({"tokens": True}, "tokens must be a whole number from 1, got True"),
    ({"stop": b"at"}, "stop must be a text or several of them, got bytes b'at'"),
    ({"stop": [10]}, "stop must hold only texts, got int 10"),
    ({"prompts": []}, "prompts must hold at least one"),
    ({"prompts": np.array(5)}, "prompts must be a text or several of them, got int 5"),
    ({"prompts": bytearray(b"abc")}, "prompts must be a text or several of them, got bytearray"),
    ({"prompts": [5.0]}, "prompts must hold only texts, got float 5.0 among them"),
    ({"prompts": [5, 256]}, r"the prompt array\(\[  5, 256\]\): tokens must be from 0 to 255"),
    ({"prompts": [[]]}, r"prompts must hold only texts, got list \[\] among them"),
    ({"prompts": b"abc"}, "prompts must be a text or several of them, got bytes b'abc'"),
    ({"prompts": [b"abc"]}, "prompts must hold only texts, got bytes b'abc'"),
    ({"prompts": None}, "prompts must be a text or several of them, got NoneType"),
    ({"prompts": "a\ud800"}, r"the prompt 'a\\ud800': the text is not UTF-8: character 1 of it is"),
])
def test_bad_arguments_are_refused_before_anything_is_written(session, settings, message):
    for method in (session.generate, session.complete):
        with pytest.raises(ValueError, match=message):
            method(**{"prompts": "a", **settings})


@pytest.mark.parametrize(("vocab", "prompt", "message"), [
    (128, "héllo", "the prompt 'héllo': the text has 'é', the byte 195 at .* knows only ASCII"),
    (8, "", r"the prompt '': the text has '\\n', the byte 10 at ")])
def test_the_character_is_named_that_a_vocabulary_does_not_have(vocab, prompt, message):
    model = random_model(ModelConfig(8, 1, 12, vocab), S16)
    with pytest.raises(ValueError, match=message):
        Session(build(model)).complete(prompt)


# Arrays and states -----------------------------------------------------------------


def test_lists_are_taken_wherever_arrays_are(session):
    rows = [[1, 2, 3], [4, 5, 6]]
    for method in (session.run, session.prefill):
        for mine, right in zip(method(rows), method(np.array(rows)), strict=True):
            np.testing.assert_array_equal(mine, right)
    _, state = session.prefill(rows)
    again, after = session.step([7, 8], state.tolist())
    np.testing.assert_array_equal(again, session.step(np.array([7, 8]), state)[0])
    assert after.shape == state.shape


@pytest.mark.parametrize(("call", "message"), [
    *((lambda session, name=name, rows=rows: getattr(session, name)(rows), message)
      for name in ("run", "prefill") for rows, message in (
          ([[1, 2], [3]], r"\[batch, length\].* rows of different lengths"),
          ([[1.5]], r"whole numbers \[batch, length\].*float64 \[1, 1\]"),
          ([[]], r"\[batch, length\], at least one of them.*\[1, 0\]"))),
    (lambda session: session.step([7, 8], [[[1], [2, 3]]]),
     r"state must be numbers .* rows of different lengths"),
    (lambda session: session.start(1.5), r"batch must be a whole number from 0, got 1\.5"),
    (lambda session: session.save_state(np.zeros((2, 1, 23), np.int32)),
     r"\[layers, batch, d\] = \[2, batch, 24\]"),
    (lambda session: session.save_state(np.zeros((2, 1, 24))), "state must be whole numbers"),
    (lambda session: session.save_state(np.full((2, 1, 24), 40000)),
     "state must be from -32768 to 32767, got 40000"),
    (lambda session: Session(5), r"must be the path of an ONNX file .*, got 5"),
    (lambda session: Session(build(load_model("micro")), threads=1.5),
     r"threads must be a whole number .*, got 1\.5"),
])
def test_what_does_not_fit_is_refused(session, call, message):
    with pytest.raises(ValueError, match=message):
        call(session)


def test_foreign_and_damaged_states_are_refused(model, session):
    other, fast = (Session(build(made, form)) for made, form in (
        (random_model(model.config, S16, seed=1), "exact"), (model, "fast")))
    saved = session.save_state(session.start())
    for reader, data, message in (
        (other, saved, "belongs to another model: expected"),
        (fast, saved, "of the form exact, from which the form fast cannot"),
        (session, fast.save_state(fast.start()), "of the form fast, from which the form exact"),
        (session, "state", "a saved state must be bytes, got str"),
        (session, b"PK\3\4", "not a saved state of Sterna"),
        (session, saved[:-5], "damaged or cut off"), (session, saved[:60], "damaged"),
        (session, saved.replace(b"[2, 1, 24]", b"[48]"),
         r"whole numbers \[layers, batch, d\].* int32 \[48\]"),
        (session, saved.replace(b"[2, 1, 24]", b"[2, 5, 24]"), "saved state is damaged"),
    ):
        with pytest.raises(ValueError, match=message):
            reader.load_state(data)
