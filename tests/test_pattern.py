"""Patterns of mixers, the registry behind them, and mixers from files of one's own."""

from pathlib import Path

import pytest
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.pattern import parse_pattern
from sterna.model.torch.mixers.recurrent import MLGRU
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS, Registry
from sterna.model.torch.stack.language_model import LanguageModel

BASE = "from sterna.model.torch.network.mixer import TokenMixer"
MINE = '''
from torch import nn
from sterna.model.torch.network.mixer import TokenMixer
from sterna.model.torch.network.registry import token_mixer

@token_mixer("shift_by_one")
class Shift(TokenMixer):
    def __init__(self, init, *, gain: float = 1.0, listed=()):
        super().__init__()
        self.out, self.gain = init.linear(init.d, init.d), gain

    def forward(self, x, state):
        import torch
        return self.gain * self.out(torch.cat([state[0].unsqueeze(0), x[:-1]])), (x[-1],)

    def initial_state(self, x):
        return (x.new_zeros(x.shape[-2], x.shape[-1]),)

    def state_words(self, length):
        return self.out.weight.shape[1]

class NoMixer(nn.Module):
    pass
'''


def model_of(mixer: str) -> LanguageModel:
    return LanguageModel(ModelConfig(d=16, layers=1, dff=16, mixer=mixer))


def test_a_pattern_is_repeated_over_the_layers() -> None:
    config = ModelConfig(d=16, layers=6, dff=16, mixer="2*mlgru + attention(heads=2)")
    assert [str(token) for token, _ in config.mixers()] == 2 * [
        "mlgru", "mlgru", "attention(heads=2)"]
    names = [type(block.mixer).__name__ for block in LanguageModel(config).blocks()]
    assert names == 2 * ["MLGRU", "MLGRU", "Attention"]


@pytest.mark.parametrize(("choice", "message"), [
    ({"mixer": "3*mlgru + window(size=64)"},
     r"the mixer pattern '3\*mlgru \+ window\(size=64\)' is for 4 layers or more, this .* has 2"),
    ({"channel": "glu+mlp+glu"}, r"the channel pattern 'glu \+ mlp \+ glu' is for 3 layers"),
])
def test_a_pattern_of_which_the_end_would_be_left_out_is_refused(
        choice: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(d=16, layers=2, dff=16, **choice)
    assert ModelConfig(d=16, layers=2, dff=16, mixer="9*mlgru").mixer == "mlgru"


@pytest.mark.parametrize(("pattern", "kept"), [
    ("4*mlgru", "mlgru"), ("mlgru + mlgru", "mlgru"), (" mlgru ( ) ", "mlgru"),
    ("mlgru+mlgru+window( size=5 )", "2*mlgru + window(size=5)"),
    ("mqa + mlgru + mqa", "mqa + mlgru + mqa"), ("2*mqa + mlgru + 2*mqa + mlgru", "2*mqa + mlgru"),
    ("lru(r_min=1e-5)", "lru(r_min=1e-05)"),
])
def test_a_pattern_is_kept_in_its_shortest_spelling(pattern: str, kept: str) -> None:
    config = ModelConfig(d=16, layers=7, dff=16, mixer=pattern)
    assert config.mixer == kept
    assert config == ModelConfig(**config.to_json())
    choices = parse_pattern(pattern)
    assert [token for token, _ in config.mixers()] == [
        choices[layer % len(choices)] for layer in range(7)]
    assert config.has_integer_form == (kept == "mlgru")


@pytest.mark.parametrize("pattern", [
    "", "+", "mlgru +", "0*mlgru", "2000*mlgru", "mlgru mlgru", "mlgru(", "mlgru(heads)",
    "mlgru(heads=1, heads=2)", "3*", "mlgru(heads=1) x", "window(size=99999999999)"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"in the pattern .* (expected|is no|at most 2147483647$)"):
        ModelConfig(d=16, layers=1, dff=16, mixer=pattern)


def test_options_keep_their_kinds_and_may_hold_a_plus() -> None:
    (one,) = parse_pattern("x(a=1, b=-2.5, c=true, d=word, e=1e+3)")
    assert one.options == (("a", 1), ("b", -2.5), ("c", True), ("d", "word"), ("e", 1000.0))
    assert parse_pattern(str(one)) == (one,)


@pytest.mark.parametrize(("mixer", "message"), [
    ("mlgur", r"no token mixer is called 'mlgur'; did you mean mlgru\?"),
    ("zzz", r"no token mixer is called 'zzz'; known are .*attention.*mlgru"),
    ("mlgru(head=2)", r"the token mixer mlgru has no option 'head'; it has heads"),
    ("mlgru(heads=yes)", r"the option mlgru\(heads\) must be a whole number, got 'yes'"),
    ("mlgru(heads=true)", r"the option mlgru\(heads\) must be a whole number, got True"),
    ("mlgru(heads=3)", r"token mixer mlgru\(heads=3\): d \(16\) must be a multiple of heads"),
    ("attention(rope=1)", r"the option attention\(rope\) must be true or false, got 1"),
    ("attention(causal=false)", r"is not causal, so it cannot predict the next token"),
    ("nowhere:Mixer", r"there is no module 'nowhere' in this folder or on the Python path"),
    ("nowhere.py:Mixer", r"cannot read nowhere\.py: there is no such file"),
    ("pathlib:Path", r"pathlib has no class 'Path' that extends TokenMixer"),
    *((f"{place}:Mixer", r"is no module: expected module:Class or folder/file\.py")
      for place in ("", ".", "..mine", "a-b")),
])
def test_a_choice_that_is_none_is_one_clear_message(mixer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_of(mixer)


def test_a_mixer_of_ones_own_file_works_by_path_module_and_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py:Shift", f"{tmp_path}/mine.py:Shift", "mine:Shift", "shift_by_one"):
        assert model_of(f"{name}(gain=0.5)").blocks()[0].mixer.gain == 0.5
    for mixer, message in (
            ("Shift(gian=1.0)", r"has no option 'gian'; it has gain, listed"),
            ("Shift(listed=1)", r"option mine:Shift\(listed\) cannot be given here"),
            ("NoMixer", r"mine has no class 'NoMixer' that extends TokenMixer")):
        with pytest.raises(ValueError, match=message):
            model_of(f"mine:{mixer}")


@pytest.mark.parametrize(("source", "message"), [
    ("def f(:", r"cannot import bad\.py: SyntaxError: invalid syntax \(bad\.py, line 1\)"),
    ("x = 1\nimport nosuch", r"ModuleNotFoundError: No module named 'nosuch' \(bad\.py, line 2\)"),
    ("def f():\n    1 / 0\nf()", r"ZeroDivisionError: division by zero \(bad\.py, line 2\)"),
    (f"{BASE}\nBad = TokenMixer", r"it does not define __init__\(self, init\), forward"),
    (f"{BASE}\nclass Bad(TokenMixer):\n  def __init__(self, init): super().__init__()",
     r"bad\.py:Bad is no mixer yet: it does not define forward$"),
    (f"{BASE}\nclass Bad(TokenMixer):\n  def forward(self, x, state): return x, state",
     r"it does not define __init__\(self, init\)$"),
    ("import sys\nsys.exit()", r"cannot import bad\.py: SystemExit \(bad\.py, line 2\)"),
    (f"{BASE}\nclass Bad(TokenMixer):\n  def __init__(self, init): nosuch\n"
     "  def forward(self, x, state): return x, state",
     r"cannot make bad\.py:Bad: NameError: name 'nosuch' is not defined \(bad\.py, line 3\)"),
])
def test_a_file_that_holds_no_mixer_is_one_clear_message(
        source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):      # a file that failed is read again
        with pytest.raises(ValueError, match=message):
            model_of("bad.py:Bad")
    (tmp_path / "a_bad_module.py").write_text("import nosuch")
    with pytest.raises(ValueError, match=r"cannot import a_bad_module: .*'nosuch' \(a_bad_mod"):
        model_of("a_bad_module:Bad")


def test_a_name_belongs_to_one_class() -> None:
    registry: Registry[TokenMixer] = Registry("token mixer", MLGRU)
    registry.register("one")(MLGRU)
    registry.register("one")(MLGRU)

    class Other(MLGRU):
        def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
            return x, state

    with pytest.raises(ValueError, match="there already is a token mixer 'one': MLGRU"):
        registry.register("one")(Other)
    with pytest.raises(ValueError, match="Path must extend MLGRU"):
        registry.register("two")(Path)


def test_channel_mixers_are_chosen_the_same_way() -> None:
    with pytest.raises(ValueError, match=r"no channel mixer is called 'gluu'; did you mean"):
        LanguageModel(ModelConfig(d=16, layers=1, dff=16, channel="gluu"))
    assert "glu" in CHANNEL_MIXERS.names()
    assert "mlgru" in TOKEN_MIXERS.names()
    built = CHANNEL_MIXERS.build(parse_pattern("glu")[0], MixerInit(16, 24))
    assert built.macs(1) == 3 * 16 * 24
    assert built.multiplies(1) == 24
