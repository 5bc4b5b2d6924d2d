"""A session as bytes: the optimised model, and those weights that the library has laid out anew.

What a session costs to open is mostly what the library does to the graph: fusing, folding, laying weights out for the
processor's kernels. The result is a model again. Weights that it left as they were are named by their place among the
Function's constants and not stored; the others come first in the file, aligned, and are used where they lie.

    weights    each at a multiple of 64 bytes
    model      ONNX; its external data is in "weights", or in "constant_<n>"
    header     JSON: names of inputs and outputs, the constants that are used, lengths of weights and model
    8 bytes    length of the header
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from onnxruntime import ModelCompiler, OrtExternalInitializerInfo, SessionOptions

from xrt.engines.ort.handing import bytes_of
from xrt.engines.ort.session import Handed, give_files
from xrt.formats.onnx import external_weights, with_weights_outside
from xrt.graph import Function, Node, Value
from xrt.graph.mapping import release

__all__ = ["Saved", "optimised"]

Array: TypeAlias = np.ndarray[Any, Any]

ALIGNMENT = 64
SMALL = 1024
"""Bytes under which a weight stays in the model."""

_OWN = "weights"
_STRING = 8
"""ONNX's number for tensors of strings."""


@dataclass(frozen=True)
class Saved:
    """What a session was saved as, read."""

    data: memoryview
    """All of it."""
    header: Mapping[str, Any]

    @classmethod
    def read(cls, data: memoryview) -> Saved:
        """Read what `optimised` wrote, whose checksum has been checked."""
        length = int.from_bytes(data[-8:], "little")
        return cls(data, json.loads(bytes(data[-8 - length : -8])))

    def handed(self, function: Function) -> Handed:
        """Return what a session is made from, with the weights of an equal Function."""
        weights, size = _weights(function), self.header["weights"]
        files = {_name(index): bytes_of(weights[index][1]) for index in self.header["constants"]}
        if size:
            files[_OWN] = np.frombuffer(self.data[:size], np.uint8)
        return Handed(bytes(self.data[size : size + self.header["model"]]), files, copied=size)

    def border(self, function: Function) -> Function:
        """Return a Function with the border of an equal one under the names that the session has.

        One node stands for all that the session computes; an output that is an input or a constant stays one.
        """
        sides = (function.inputs, self.header["inputs"]), (function.outputs, self.header["outputs"])
        named = {value.name: name for side, names in sides for value, name in zip(side, names, strict=True)}
        inputs, outputs = (tuple(Value(named[v.name], v.type) for v in side) for side, _ in sides)
        computed = dict.fromkeys(named[v.name] for v in function.outputs if function.position(v.name) is not None)
        constants = {named[v.name]: function.constants[v.name] for v in function.outputs if v.name in function.constants}
        node = Node("Session", (), tuple(computed), domain="ort", name="session")
        return Function(inputs, outputs, (node,), constants, name=function.name)


def _weights(function: Function) -> list[tuple[str, Array]]:
    """Return the large constants, bodies' too, in the order of their first use, which is the same for equal Functions."""
    function = with_weights_outside(function)
    arrays = external_weights(function)
    used = dict.fromkeys(name for node in function.nodes for name in node.uses if name in arrays)
    return [(name, arrays[name]) for name in used]


def _name(index: int) -> str:
    return f"constant_{index}"


def in_memory() -> BinaryIO:
    """Open a file that has no name and lies in memory alone; raises OSError where the system has none."""
    if not hasattr(os, "memfd_create"):
        raise OSError("the system has no files in memory")
    return os.fdopen(os.memfd_create("xrt-session", os.MFD_CLOEXEC), "w+b")


def optimised(function: Function, handed: Handed, options: SessionOptions, file: BinaryIO) -> memoryview:
    """Return the model of a session optimised, as `Saved` reads it: mapped from the file, which is new.

    ``handed`` is what the Function was handed over as, and ``options`` those of its session. Whatever the library
    raises passes.
    """
    level = options.graph_optimization_level
    places = _Places(function, file)
    give_files(handed, options)
    compiler = ModelCompiler(options, handed.model, graph_optimization_level=level, get_initializer_location_func=places.place)
    model = compiler.compile_to_bytes()
    header = {
        "inputs": [v.name for v in function.inputs],
        "outputs": [v.name for v in function.outputs],
        "constants": sorted(places.used),
        "weights": file.tell(),
        "model": len(model),
    }
    text = json.dumps(header).encode()
    file.write(model + text + len(text).to_bytes(8, "little"))
    file.flush()
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class _Places:
    """Says of each weight of an optimised model where it lies, and writes those that lie nowhere yet."""

    def __init__(self, function: Function, file: BinaryIO) -> None:
        self._weights = {name: (index, array) for index, (name, array) in enumerate(_weights(function))}
        self._file = file
        self.used: set[int] = set()
        """Which of the Function's constants the model refers to."""

    def place(self, name: str, value: Any, info: object) -> OrtExternalInitializerInfo | None:
        """Return where a weight lies: in the model (None), in a constant of the Function, or in the file."""
        size = value.tensor_size_in_bytes()
        if size < SMALL or value.element_type() == _STRING:
            return None
        memory = (ctypes.c_char * size).from_address(value.data_ptr())
        index, array = self._weights.get(name, (0, None))
        if array is not None and array.nbytes == size and _is_same(memory, array):
            self.used.add(index)
            return OrtExternalInitializerInfo(_name(index), 0, size)
        at = self._file.tell()
        self._file.write(memory)
        self._file.write(bytes(-size % ALIGNMENT))
        return OrtExternalInitializerInfo(_OWN, at, size)


def _is_same(memory: Any, array: Array) -> bool:
    """Whether the library has left a weight as it was; what lies in a file is not kept in memory for the comparison."""
    same = memoryview(memory).cast("B") == bytes_of(array).data
    release(array)
    return same
