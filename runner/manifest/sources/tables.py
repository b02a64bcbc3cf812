"""Parquet files, and data sets of the hub: rows of a table, read block by block."""

from __future__ import annotations  # pyarrow for types alone

import contextlib
import math
import os
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic_core

from runner.errors import ManifestError, Problem
from runner.manifest.sources.records import Fields, Records, repeated_name
from runner.units import install_line

if TYPE_CHECKING:
    import pyarrow as pa

    from runner.manifest.sources.spec import Dataset

__all__ = ["DatasetRows", "ParquetRows"]

BLOCK = 1024  # rows in memory at a time


class TableRows(Records):
    """A record is a row; a place is its number from 0. Columns of bytes, such as images, are left
    out."""

    rows = 0

    def __init__(self, shown: str) -> None:
        super().__init__(shown)
        self._block: tuple[int, list[Any]] = (-1, [])

    @abstractmethod
    def block(self, number: int) -> Any:
        """The rows from `number` × BLOCK on, as Arrow has them."""

    def stream(self) -> Iterator[tuple[int, Any]]:
        return zip(range(self.rows), self.at(range(self.rows)), strict=True)

    def at(self, places: Iterable[int]) -> Iterator[Any]:
        for place in places:
            if self._block[0] != place // BLOCK:
                self._block = place // BLOCK, _rows(self.block(place // BLOCK))
            yield self._block[1][place % BLOCK]

    def fields(self, record: Any) -> Fields | None:
        if isinstance(record, ValueError):
            raise record
        found = {name: value for name, value in record.items() if not _is_empty(value)}
        for name, value in found.items():
            if type(value) is float and math.isinf(value):
                raise ValueError(f"{name}: {value}: a number that is not finite")
            if type(value) is dict:  # an Arrow struct has all its keys in every row
                value = {key: inner for key, inner in value.items() if inner is not None}
            if type(value) not in (str, int, float, bool):
                found[name] = pydantic_core.to_jsonable_python(value, inf_nan_mode="null")
        return found or None

    def where(self, place: int) -> str:
        return f"{self.shown}: row {place + 1}"

    def sum(self, record: Any) -> int:
        return zlib.crc32(repr(record).encode(errors="surrogatepass"))


class ParquetRows(TableRows):
    """A Parquet file is not made for single rows: it is unpacked once into a temporary file."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(shown)
        pa = _pyarrow(shown)
        try:
            self._unpack(path)
        except (pa.ArrowException, ValueError, OSError) as error:
            words = f"cannot be read as Parquet: {str(error).splitlines()[0]}"
            raise ManifestError([Problem(shown, words)]) from None

    def _unpack(self, path: Path) -> None:
        import tempfile

        import pyarrow as pa

        descriptor, name = tempfile.mkstemp(suffix=".arrow", prefix="runner-")
        os.close(descriptor)
        try:
            self._copy(path, name)
            self._reader = pa.ipc.open_file(pa.OSFile(name, "rb"))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)  # the open file stays until this process ends

    def _copy(self, path: Path, name: str) -> None:
        """The columns that can be written as JSON, in blocks."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetFile(path, pre_buffer=False) as file:
            schema = pa.schema([field for field in file.schema_arrow if _is_plain(field.type)])
            self._names, self.rows = schema.names, file.metadata.num_rows
            self.left_out = [name for name in file.schema_arrow.names if name not in self._names]
            if twice := repeated_name(self._names):
                raise ManifestError([Problem(self.shown, twice)])
            with pa.OSFile(name, "wb") as out, pa.ipc.new_file(out, schema) as writer:
                for table in _blocks(file, schema):
                    writer.write_table(table, BLOCK)

    def names(self) -> list[str]:
        return list(self._names)

    def block(self, number: int) -> Any:
        return self._reader.get_batch(number)


class DatasetRows(TableRows):
    """A split of a data set. It lies in the cache of `datasets` as a file made for single rows."""

    def __init__(self, spec: Dataset) -> None:
        super().__init__(spec.dataset)
        try:
            import datasets
        except ImportError:
            words = f"needs the package datasets: {install_line('datasets')}"
            raise ManifestError([Problem(self.shown, words)]) from None
        datasets.disable_progress_bars()
        try:
            found = datasets.load_dataset(
                spec.dataset, spec.config, split=spec.split, revision=spec.revision
            )
        except Exception as error:  # of the hub, the cache, the data set's files: any
            reason = [*str(error).strip().splitlines(), type(error).__name__][0]
            raise ManifestError([Problem(self.shown, f"cannot be loaded: {reason}")]) from None
        plain = [field.name for field in found.features.arrow_schema if _is_plain(field.type)]
        self._names, self.rows = plain, len(found)
        self.left_out = [name for name in found.features if name not in plain]
        self._data = found.select_columns(plain).with_format("arrow")

    def names(self) -> list[str]:
        return list(self._names)

    def block(self, number: int) -> Any:
        return self._data[number * BLOCK : (number + 1) * BLOCK]


def _pyarrow(shown: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        words = f"Parquet needs the package pyarrow: {install_line('pyarrow')}"
        raise ManifestError([Problem(shown, words)]) from None
    return pyarrow


def _blocks(file: Any, schema: pa.Schema) -> Iterator[pa.Table]:
    """The file as tables of BLOCK rows, the last of fewer."""
    import pyarrow as pa

    rest = schema.empty_table()
    for batch in file.iter_batches(BLOCK * 16, columns=schema.names, use_threads=False):
        rest = pa.concat_tables([rest, pa.Table.from_batches([batch], schema=schema)])
        whole = len(rest) - len(rest) % BLOCK
        if whole:
            yield rest.slice(0, whole).combine_chunks()
            rest = rest.slice(whole).combine_chunks()
    if len(rest):
        yield rest.combine_chunks()


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of a column can be written as JSON."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    children = [kind.field(place).type for place in range(kind.num_fields)]
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return not (is_bytes or pa.types.is_fixed_size_binary(kind)) and all(map(_is_plain, children))


def _rows(block: Any) -> list[Any]:
    """Rows by name of column; a ValueError for one that cannot be read."""
    try:
        return list(block.to_pylist())
    except UnicodeDecodeError:
        return [_row(block, place) for place in range(block.num_rows)]


def _row(block: Any, place: int) -> Any:
    found = {}
    for name in block.schema.names:
        try:
            found[name] = block.column(name)[place].as_py()
        except UnicodeDecodeError as error:
            byte = f"byte {error.start + 1} is {error.object[error.start]:#04x}"
            return ValueError(f"{name}: not UTF-8 ({byte})")
    return found


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
