"""Where a module's Function comes from: a fixed one, or an `xrt.Graph` traced for the inputs at hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from xrt import passes
from xrt.cache import CompileCache
from xrt.cache.disk.weights import stamp_of
from xrt.errors import InputError, ModelError
from xrt.formats import onnx
from xrt.graph import Function, TensorType, Value
from xrt.graph.builder import Graph
from xrt.graph.verify import verify
from xrt.runtime import inputs

__all__ = ["Source", "source_of"]


class Source(Protocol):
    """A model before it is compiled."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The declared inputs; their types are None where only a call tells."""

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The declared outputs; empty where only a call tells."""

    def key(self, values: Sequence[Any], dynamic: bool) -> object:
        """Return what of the inputs the Function depends on; ``dynamic`` when symbolic extents may stay symbolic."""

    def function(self, values: Sequence[Any], dynamic: bool) -> Function:
        """Return the Function for such inputs."""

    def declared(self) -> Function:
        """Return the Function without inputs to look at; raises InputError where that cannot be."""


def source_of(model: Any, cache: CompileCache | None = None) -> Source:
    """Return the source for any kind of model that a module accepts; raises ModelError for what is none.

    The cache, if given, may know the hashes of a file's weights.
    """
    if isinstance(model, Graph):
        return Traced(model)
    if isinstance(model, Function):
        return Fixed(model)
    if isinstance(model, type) and issubclass(model, Graph):
        raise ModelError(f"{model.__name__} is a class; pass an instance: XRTModule({model.__name__}())")
    if isinstance(model, str | os.PathLike):
        return _from_file(Path(model), cache)
    if isinstance(model, bytes | bytearray) or hasattr(model, "graph"):
        return Fixed(onnx.load(bytes(model) if isinstance(model, bytearray) else model))
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise ModelError(f"a model is an xrt.Graph, a Function, or ONNX as a path, bytes or ModelProto; got a {kind}")


def _from_file(path: Path, cache: CompileCache | None) -> Fixed:
    stamp = stamp_of(path)
    source = Fixed(onnx.load(path))
    if cache is not None and cache.disk is not None:
        cache.disk.weights.recall(source.declared(), path.absolute(), stamp)
    return source


class Fixed:
    """A Function that is there already; symbolic extents are bound per call where engines want them fixed."""

    def __init__(self, function: Function) -> None:
        verify(function)
        self._function = passes.infer_shapes(function)
        self._is_static = all(isinstance(v.type, TensorType) and v.type.is_static for v in function.inputs)

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self._function.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self._function.outputs

    def key(self, values: Sequence[Any], dynamic: bool) -> object:
        if dynamic or self._is_static:
            return None
        return tuple(getattr(value, "shape", None) for value in values)

    def function(self, values: Sequence[Any], dynamic: bool) -> Function:
        if dynamic or self._is_static:
            return self._function
        pairs = zip(self._function.inputs, values, strict=True)
        return passes.specialise(self._function, {v.name: x.shape for v, x in pairs if isinstance(v.type, TensorType)})

    def declared(self) -> Function:
        return self._function


class Traced:
    """An `xrt.Graph`: its `build` runs once per signature."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._inputs = tuple(Value(name) for name in graph.input_names)

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return ()

    def key(self, values: Sequence[Any], dynamic: bool) -> object:
        return tuple(inputs.type_of(value) for value in values)

    def function(self, values: Sequence[Any], dynamic: bool) -> Function:
        function = self._graph.trace(*[inputs.type_of(value) for value in values])
        verify(function)
        return passes.infer_shapes(function)

    def declared(self) -> Function:
        if self._inputs:
            raise InputError("an xrt.Graph is traced for its inputs; call the module, or m.compile(*examples), first")
        return self.function([], dynamic=False)
