"""Mixers by name: Sterna's, and those in your files."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from sterna.model.pattern import Choice, Option
from sterna.model.torch.network.mixer import ChannelMixer, Mixer, TokenMixer
from sterna.model.torch.network.projection import MixerInit

__all__ = ["CHANNEL_MIXERS", "TOKEN_MIXERS", "Registry", "channel_mixer", "token_mixer"]

_Kind = TypeVar("_Kind", bound=Mixer)


class Registry(Generic[_Kind]):
    """The classes of one kind of mixer by name; ``what`` names the kind in messages, such as
    ``token mixer``, and ``kind`` is the base class."""

    def __init__(self, what: str, kind: type[_Kind]) -> None:
        self.what, self.kind = what, kind
        self._classes: dict[str, type[_Kind]] = {}

    def register(self, name: str) -> Callable[[type[_Kind]], type[_Kind]]:
        """A decorator that registers a class as ``name``."""
        def note(cls: type[_Kind]) -> type[_Kind]:
            if not issubclass(cls, self.kind):
                raise ValueError(f"{cls.__name__} must extend {self.kind.__name__}")
            before = self._classes.get(name)
            if before is not None and _source(before) != _source(cls):
                raise ValueError(f"there already is a {self.what} {name!r}: {before.__qualname__}")
            if before is None or not before.__module__.startswith("sterna."):
                self._classes[name] = cls
            return cls
        return note

    def names(self) -> list[str]:
        """The names known so far, in alphabetical order."""
        return sorted(self._classes)

    def find(self, name: str) -> type[_Kind]:
        """The class of a name, or of ``module:Class`` or ``folder/file.py:Class``."""
        if ":" in name:
            return self._imported(name)
        if name not in self._classes:
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(self.names())}"
            raise ValueError(f"no {self.what} is called {name!r}; {hint}")
        return self._classes[name]

    def options(self, name: str) -> dict[str, inspect.Parameter]:
        """The options of a mixer, with their defaults."""
        parameters = inspect.signature(self.find(name).__init__).parameters
        return {each.name: each for each in parameters.values()
                if each.kind is inspect.Parameter.KEYWORD_ONLY}

    def build(self, choice: Choice, init: MixerInit) -> _Kind:
        """Make the mixer of a choice."""
        options = self.options(choice.name)
        for name, value in choice.options:
            if name not in options:
                has = f"it has {', '.join(options)}" if options else "it has none"
                raise ValueError(f"the {self.what} {choice.name} has no option {name!r}; {has}")
            _check_kind(f"{choice.name}({name})", value, options[name].default)
        try:
            return self.find(choice.name)(init, **dict(choice.options))
        except ValueError as error:
            raise ValueError(f"{self.what} {choice}: {error}") from error
        except Exception as error:
            if ":" not in choice.name:      # a defect of ours
                raise
            raise _broken(f"cannot make {choice}", error) from error

    def _imported(self, name: str) -> type[_Kind]:
        place, _, attribute = name.rpartition(":")
        found = getattr(_module(place), attribute, None)
        if not (isinstance(found, type) and issubclass(found, self.kind)):
            raise ValueError(
                f"{place} has no class {attribute!r} that extends {self.kind.__name__}")
        missing = [] if found.__init__ is not self.kind.__init__ else ["__init__(self, init)"]
        missing += sorted(found.__abstractmethods__)  # type: ignore[attr-defined]  # of ABCMeta
        if missing:
            raise ValueError(f"{name} is no mixer yet: it does not define {', '.join(missing)}")
        return found


def _source(cls: type) -> tuple[str, str]:
    """The file and name of a class: a file may be loaded twice, as a script or as a copy."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file or "").name, cls.__qualname__


def _check_kind(name: str, value: Option, default: Any) -> None:
    """Refuse a value of another kind than the default; None stands for any integer."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    kind = int if default is None else type(default)
    if kind not in kinds:
        raise ValueError(f"the option {name} cannot be given here: its default is {default!r}, "
                         f"and no number, word, true or false")
    right = (type(value) in (int, float)) if kind is float else type(value) is kind
    if not right:
        raise ValueError(f"the option {name} must be {kinds[kind]}, got {value!r}")


def _module(place: str) -> ModuleType:
    """The module of a dotted name, also searched in the current folder, or of a file."""
    if place.endswith(".py"):
        path = Path(place)
        known = sys.modules.get(f"sterna_mixers_{path.stem}")
        if known is not None and known.__file__ == str(path.resolve()):
            return known
        if not path.is_file():
            raise ValueError(f"cannot read {place}: there is no such file")
        spec = importlib.util.spec_from_file_location(
            f"sterna_mixers_{path.stem}", path.resolve())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[spec.name]    # remove the half-loaded module
            raise _broken(f"cannot import {place}", error) from error
        return module
    if not all(part.isidentifier() for part in place.split(".")):
        raise ValueError(f"{place!r} is no module: expected module:Class or folder/file.py:Class")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _is_or_is_in(place, error.name or ""):
            raise ValueError(
                f"there is no module {place!r} in this folder or on the Python path") from error
        raise _broken(f"cannot import {place}", error) from error
    finally:
        sys.path.remove(str(Path.cwd()))


def _is_or_is_in(place: str, package: str) -> bool:
    return f"{place}.".startswith(f"{package}.")


def _broken(what: str, error: BaseException) -> ValueError:
    """An error in a user's file, with the line at which it failed."""
    where = ""
    if not isinstance(error, SyntaxError):    # says so itself
        frames = [each for each in traceback.extract_tb(error.__traceback__)
                  if "importlib" not in each.filename]
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ValueError(f"{what}: {said}{where}")


# The abstract classes are base classes and never instantiated.
TOKEN_MIXERS: Registry[TokenMixer] = Registry("token mixer", TokenMixer)  # type: ignore[type-abstract]
CHANNEL_MIXERS: Registry[ChannelMixer] = Registry("channel mixer", ChannelMixer)  # type: ignore[type-abstract]

token_mixer = TOKEN_MIXERS.register
"""Decorator: ``@token_mixer("mine")`` registers a class under a name."""
channel_mixer = CHANNEL_MIXERS.register
"""Decorator: the same for a channel mixer."""
