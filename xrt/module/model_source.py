"""Where a module gets its Function from: a fixed Function, or an `xrt.Graph` that is traced for the inputs of a call."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.errors import InputError, ModelError
from xrt.graph import Function, TensorType, Type, Value
from xrt.graph.types import infer_type

if TYPE_CHECKING:
    from xrt.builder import Graph

EXPORT_ADVICE = "torch.onnx.export(module, (example,), 'model.onnx', dynamo=True) writes a file that XRT takes"
TORCH_SUFFIXES = frozenset({".pt", ".pth", ".pt2", ".ckpt"})
Key: TypeAlias = tuple[Any, ...] | None
"""Identifies the Function for a call: the shapes of its inputs, or their types for a traced graph. None: the only Function."""


def make_source(model: Any) -> ModelSource:
    """Create the source of any model that XRTModule accepts. Raises ModelError for other objects."""
    if is_graph(model):
        return TracedGraph(model)
    if isinstance(model, StaticModel | TracedModel):
        return model
    if isinstance(model, Function):
        return StaticModel(model)
    if isinstance(model, type) and (is_graph(model, as_class=True) or is_from_torch(model)):
        raise ModelError(f"{model.__name__} is a class; pass an instance: XRTModule({model.__name__}(...))")
    if isinstance(model, str | os.PathLike):
        return _load_file(Path(model))
    if is_from_torch(model):
        raise ModelError(f"a PyTorch model must be exported first: {EXPORT_ADVICE}")
    # A ModelProto is recognized by its field `graph`, so that onnx is not imported for other models.
    if isinstance(model, bytes | bytearray) or hasattr(model, "graph"):
        from xrt.formats import onnx

        return StaticModel(onnx.load(bytes(model) if isinstance(model, bytearray) else model))
    kind = f"{type(model).__module__}.{type(model).__qualname__}".removeprefix("builtins.")
    raise ModelError(
        f"a model is an xrt.Graph, a Function, a torch.nn.Module, or ONNX as a path, bytes or ModelProto; got: {kind}"
    )


def is_graph(model: object, *, as_class: bool = False) -> bool:
    """Whether the object is an `xrt.Graph` or, with ``as_class``, a subclass of it. Does not import the builder."""
    tracing = sys.modules.get("xrt.builder.tracing")
    if tracing is None:
        return False
    if as_class and isinstance(model, type):
        return issubclass(model, tracing.Graph)
    return isinstance(model, tracing.Graph)


def _check_function(function: Function) -> Function:
    """Verify a Function and infer its types. Raises ModelError if it is invalid or types contradict each other."""
    from xrt import passes
    from xrt.graph.state import STATE_KEY, declare_states, list_states
    from xrt.graph.verify import verify, verify_types

    verify(function)
    inferred = passes.infer_shapes(function)
    # If no type was added, `infer_shapes` returns its argument, whose types were verified when it was made.
    if inferred is not function:
        verify_types(inferred)
    return declare_states(inferred, list_states(inferred)) if STATE_KEY in inferred.metadata else inferred


def is_from_torch(model: object) -> bool:
    """Whether an object or class is of PyTorch, or derives from a class of PyTorch."""
    # By module name, because importing PyTorch takes seconds.
    kinds = model.__mro__ if isinstance(model, type) else type(model).__mro__
    return any(kind.__module__.partition(".")[0] == "torch" for kind in kinds)


def _load_file(path: Path) -> StaticModel:
    from xrt.formats.onnx.files import load_file

    check_not_torch(path)
    try:
        return StaticModel(*load_file(path))
    except ModelError as error:
        from xrt.formats.bundle import is_bundle

        # A bundle may have any suffix, so its content is checked.
        if not is_bundle(path):
            raise
        raise ModelError(
            f"{os.fspath(path)!r} is a bundle, which already has engines and plans: call xrt.load({os.fspath(path)!r})"
        ) from error


def check_not_torch(path: str | os.PathLike[str]) -> None:
    """Raise ModelError, with advice on the export, if the suffix is that of a PyTorch file."""
    if Path(path).suffix.lower() in TORCH_SUFFIXES:
        raise ModelError(f"{os.fspath(path)!r} has the suffix of a PyTorch file; export it to ONNX: {EXPORT_ADVICE}")


class StaticModel:
    """A model that is a Function. Symbolic dims get the sizes of a call, unless the engines support symbolic dims."""

    is_traced = False

    def __init__(self, function: Function, locations: tuple[str, ...] = ()) -> None:
        """``locations`` has the paths of external data files, as they are written in the model file."""
        self._function, self._locations = _check_function(function), locations
        self._declare(self._function.inputs, self._function.outputs)

    def _declare(self, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.is_static = all(isinstance(value.type, TensorType) and value.type.is_static for value in inputs)
        """Whether one program serves all inputs, because their sizes are fixed."""

    def make_key(self, values: Sequence[Any]) -> Key:
        """Make the key for the inputs of a call: their shapes, or None if the model has no symbolic dims."""
        return None if self.is_static else tuple(getattr(value, "shape", None) for value in values)

    def get_function(self, key: Key) -> Function:
        """Return the Function for inputs with this key. The key None leaves dims symbolic."""
        from xrt import passes

        function = self.get_declared_function()
        if key is None:
            return function
        pairs = zip(self.inputs, key, strict=True)
        return passes.specialize(function, {v.name: shape for v, shape in pairs if isinstance(v.type, TensorType)})

    def get_declared_function(self) -> Function:
        return self._function

    @property
    def locations(self) -> tuple[str, ...]:
        return self._locations


class DeferredModel(StaticModel):
    """A model whose nodes are read only when they are needed. Programs from the cache or a bundle run without them."""

    def __init__(self, inputs: tuple[Value, ...], outputs: tuple[Value, ...], load: Callable[[], StaticModel]) -> None:
        self._load = functools.cache(load)
        self._declare(inputs, outputs)

    def get_declared_function(self) -> Function:
        return self._load().get_declared_function()

    @property
    def locations(self) -> tuple[str, ...]:
        return self._load().locations


class TracedModel:
    """A model with a Function for each set of input types, such as the traces of an `xrt.Graph` that a bundle contains."""

    is_traced = True
    is_static = False
    outputs: tuple[Value, ...] = ()

    def __init__(self, names: Sequence[str], traces: Mapping[tuple[Type | None, ...], Callable[[], Function]]) -> None:
        """``traces`` maps input types to a function that loads the trace."""
        self.inputs = tuple(map(Value, names))
        self._traces = traces

    def make_key(self, values: Sequence[Any]) -> tuple[Type | None, ...]:
        return tuple(map(infer_type, values))

    def get_function(self, key: Any) -> Function:
        """Return the Function for inputs of these types. Raises InputError if the bundle has none."""
        if key not in self._traces:
            saved = "; ".join(f"({', '.join(map(str, types))})" for types in self._traces)
            requested = ", ".join(map(str, key))
            raise InputError(
                f"the bundle has traces of a graph for inputs {saved}, but not for ({requested}); save it with such an example"
            )
        return self._traces[key]()

    def get_declared_function(self) -> Function:
        """Return the only Function. Raises InputError if there are several."""
        if len(self._traces) == 1:
            return next(iter(self._traces.values()))()
        raise InputError(f"the bundle has {len(self._traces)} traces of a graph; call the module with inputs first")


class TracedGraph(TracedModel):
    """An `xrt.Graph`, which is traced once for each set of input types."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.inputs = graph, tuple(map(Value, graph.input_names))

    def get_function(self, key: Any) -> Function:
        function = self.graph.trace(*key)
        if len(function.inputs) > len(key):
            state_names = ", ".join(repr(value.name) for value in function.inputs[len(key) :])
            raise InputError(
                f"the graph {function.name!r} keeps state ({state_names}); call a session: s = m.new_session(), then s(...)"
            )
        return _check_function(function)

    def get_declared_function(self) -> Function:
        if self.inputs:
            raise InputError("an xrt.Graph is traced for its inputs; call the module, or m.compile(*examples), first")
        return self.get_function(())


ModelSource: TypeAlias = StaticModel | TracedModel


def load_unchanged(path: Path, check: Callable[[], None]) -> StaticModel:
    """Load the model in a file. Before and after, ``check`` is called, which raises ModelError if a file has changed."""
    check()
    try:
        source = _load_file(path)
    except (ModelError, OSError):
        check()  # if a file has changed, that is the better explanation
        raise
    check()
    return source
