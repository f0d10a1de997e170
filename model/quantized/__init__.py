"""The quantised model: its file and the integer reference.

All of it runs without torch and starts from the model file. :class:`QuantizedModel` is the content
of the file; :mod:`sterna.model.quantized.integer` is the one definition of the arithmetic.
"""

from sterna.model.quantized.file import QuantizedFileError, QuantizedModel, load_model
from sterna.model.quantized.records import Projection

__all__ = ["Projection", "QuantizedFileError", "QuantizedModel", "load_model"]
