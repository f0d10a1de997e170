"""Ternary networks from text or sensor to silicon: the names that most jobs need.

``sterna.model``, ``sterna.export``, ``sterna.hw`` and ``sterna.sim`` have these and more. Each is
loaded when it is used; the file beside this one lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
