"""Texts in tables: Parquet with pyarrow, data sets with Hugging Face's datasets.

Both packages are optional, and imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["dataset_texts", "is_saved_dataset", "parquet_texts"]

_ROWS = 1024            # read at a time
_SPLIT = "train"        # of a data set, unless another is named


def parquet_texts(
    file: BinaryIO, name: str, column: str,
) -> Iterator[tuple[str, str | None]]:
    """Name and text of every row of a Parquet file; a row group at a time is in memory.

    Raises
    ------
    ModuleNotFoundError
        If pyarrow is missing.
    ValueError
        If the file is damaged or has no such column of texts.
    """
    import pyarrow as pa
    from pyarrow import parquet
    try:
        table = parquet.ParquetFile(file, pre_buffer=False)
        _check_column(name, column, table.schema_arrow.names)
        kind = table.schema_arrow.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"{name}: column {column!r} must hold texts, it holds {kind}")
        row = 0
        for batch in table.iter_batches(_ROWS, columns=[column], use_threads=False):
            for text in batch.column(0).to_pylist():
                row += 1
                yield f"{name}, row {row}", text
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: cannot read the Parquet file ({error})") from error


def is_saved_dataset(folder: str | Path) -> bool:
    """Whether ``save_to_disk`` of the package `datasets` wrote this folder."""
    return any(Path(folder, name).is_file() for name in ("dataset_dict.json", "state.json"))


def dataset_texts(named: str, column: str) -> Iterator[tuple[str, str | None]]:
    """Name and text of every row of a data set, read as it comes.

    Parameters
    ----------
    named
        A folder that ``save_to_disk`` wrote, or ``NAME[:CONFIG][:SPLIT]``, where ``NAME`` may be
        such a folder, too.
    column
        That of the texts.

    Raises
    ------
    ModuleNotFoundError
        If datasets is missing.
    ValueError
        If there is no such split, or no such column of texts.
    """
    rows = _load(named)
    if rows.column_names is not None:
        _check_column(named, column, rows.column_names)
        rows = rows.select_columns([column])
    for number, row in enumerate(rows, 1):
        name = f"{named}, row {number}"
        if rows.column_names is None:
            _check_column(name, column, list(row))
        text = row[column]
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{name}: column {column!r} must hold texts, got {text!r:.40}")
        yield name, text


def _load(named: str) -> Any:
    import datasets
    datasets.disable_progress_bars()
    name, *rest = [named] if is_saved_dataset(named) else named.split(":")
    if len(rest) > 2 or not name:
        raise ValueError(f"a data set is hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, got "
                         f"hf:{named}")
    split = rest[-1] if rest else _SPLIT
    if not is_saved_dataset(name):
        return datasets.load_dataset(name, *rest[:-1], split=split, streaming=True)
    found = datasets.load_from_disk(name)
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise ValueError(
                f"{name}: there is no split {split!r}, but {', '.join(found)}; hf:{name}:SPLIT "
                f"names one")
        return found[split]
    if rest:
        raise ValueError(f"{name}: it was saved without splits, got the split {split!r}")
    return found


def _check_column(name: str, column: str, columns: list[str]) -> None:
    if column not in columns:
        raise ValueError(f"{name}: there is no column {column!r}, but {', '.join(columns)}; "
                         f"--column names another")
