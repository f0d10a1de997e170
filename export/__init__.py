"""ONNX: forms of a model for edge runtimes, single ternary layers, and running them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
