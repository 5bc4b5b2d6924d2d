"""Assign offsets in one arena to values by their live ranges, and store values and Functions in shared memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.formats.onnx.tensors import encode_data
from xrt.formats.protobuf import read_model, write_model
from xrt.graph import Constant, DType, Function
from xrt.graph.constants import ALIGNMENT
from xrt.processes.ipc import Block, SharedBuffer, read_block

__all__ = ["LiveRange", "assign_offsets", "put_function", "put_value", "put_values", "read_function", "read_value", "read_values"]


@dataclass(slots=True)
class LiveRange:
    """A buffer that is needed from step ``first`` to step ``last``, inclusive."""

    nbytes: int
    first: int
    last: int
    offset: int = 0
    """Set by `assign_offsets`."""


def assign_offsets(spans: Sequence[LiveRange]) -> int:
    """Set offsets so that ranges that are live at the same step do not overlap; return the arena size in bytes.

    In order of time, each range gets the smallest gap that fits (best fit); of those that begin together the largest goes first.
    O(n log n), plus insertion into one sorted list of gaps.
    """
    gaps = _Gaps()
    ending: dict[int, list[LiveRange]] = defaultdict(list)
    now = -1
    for span in sorted(spans, key=lambda span: (span.first, -span.nbytes)):
        # Free buffers whose last reader is done before placing the next ones.
        while now < span.first - 1:
            now += 1
            for dead in ending.pop(now, ()):
                gaps.give(dead.offset, _rounded(dead.nbytes))
        span.offset = gaps.take(_rounded(span.nbytes))
        ending[span.last].append(span)
    return gaps.end


class _Gaps:
    """Free memory below `end` as gaps, none adjacent to another."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        """Allocate bytes in the smallest gap that fits, else at the end, including a gap that ends there."""
        index = bisect_left(self._by_size, (nbytes, 0))
        if index < len(self._by_size):
            size, start = self._by_size[index]
            self._remove(start)
            if size > nbytes:
                self._add(start + nbytes, size - nbytes)
            return start
        # Extend a gap at the end of the arena instead of leaving it unused.
        start = self._start_of.get(self.end, self.end)
        if start != self.end:
            self._remove(start)
        self.end = start + nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Free a block and merge it with adjacent gaps."""
        if not nbytes:
            return
        if start in self._start_of:
            before = self._start_of[start]
            nbytes += self._remove(before)
            start = before
        if start + nbytes in self._size_at:
            nbytes += self._remove(start + nbytes)
        self._add(start, nbytes)

    def _add(self, start: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, start))
        self._size_at[start] = nbytes
        self._start_of[start + nbytes] = start

    def _remove(self, start: int) -> int:
        nbytes = self._size_at.pop(start)
        del self._start_of[start + nbytes]
        del self._by_size[bisect_left(self._by_size, (nbytes, start))]
        return nbytes


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def put_value(buffer: SharedBuffer, value: Any) -> Any:
    """Copy an array, a list, a map or None into shared memory; return the record for `read_value`."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return {"list": put_values(buffer, value)}
    if isinstance(value, dict):  # as pairs, because keys of JSON objects are strings
        return {"map": list(value.items())}
    array = np.asarray(value)
    if array.dtype.kind in "USO":
        return {"shape": array.shape, "strings": [_as_text(one) for one in array.reshape(-1)]}
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"shape": array.shape, "dtype": DType.of(array).text, "at": buffer.put(flat.data.cast("B"))}


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def put_values(buffer: SharedBuffer, values: Sequence[Any]) -> list[Any]:
    """Copy values into shared memory; return the records for `read_values`."""
    return [put_value(buffer, value) for value in values]


def put_function(buffer: SharedBuffer, function: Function) -> Any:
    """Copy a Function into shared memory, each weight once; return the record for `read_function`."""
    weights: dict[int, str] = {}
    blocks: dict[str, Block] = {}

    def keep(constant: Constant) -> str:
        # By identity: constants that share an array are stored once.
        name = weights.setdefault(id(constant.array), f"weights:{len(weights)}")
        if name not in blocks:
            blocks[name] = buffer.put(encode_data(constant).cast("B"))
        return name

    model = write_model(function, keep)
    return {"model": buffer.put(memoryview(model)), "weights": blocks}


def read_value(memory: memoryview, record: Any) -> Any:
    """A value from shared memory; arrays are views of it."""
    if record is None:
        return None
    if "list" in record:
        return read_values(memory, record["list"])
    if "map" in record:
        return dict(record["map"])
    if "strings" in record:
        return np.array(record["strings"], dtype=object).reshape(record["shape"])
    dtype = DType.parse(record["dtype"]).numpy
    return np.frombuffer(read_block(memory, record["at"]), dtype).reshape(record["shape"])


def read_values(memory: memoryview, record: Sequence[Any]) -> list[Any]:
    """Values from shared memory."""
    return [read_value(memory, one) for one in record]


def read_function(memory: memoryview, record: Any) -> Function:
    """A Function from shared memory; its weights are views of it."""
    weights = {name: read_block(memory, block) for name, block in record["weights"].items()}
    return read_model(bytes(read_block(memory, record["model"])), weights.get)
