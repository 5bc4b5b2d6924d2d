"""Where a module's Function comes from: a fixed one, or an `xrt.Graph` traced for the inputs of a call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from xrt.errors import InputError, ModelError
from xrt.graph import Function, TensorType, Type, Value
from xrt.runtime import inputs

if TYPE_CHECKING:
    from xrt.builder import Graph
    from xrt.cache import CompileCache
    from xrt.placement.engine_list import EngineList

EXPORTING = "torch.onnx.export(module, (example,), 'model.onnx', dynamo=True) writes a file that XRT takes"
"""What to do with a model of PyTorch's."""
OF_TORCH = frozenset({".pt", ".pth", ".pt2", ".ckpt"})
"""Suffixes of files that torch.save and its like write."""


class ModelSource(Protocol):
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

    def get_declared_function(self) -> Function:
        """Return the Function without inputs to look at; raises InputError where that cannot be."""

    @property
    def is_traced(self) -> bool:
        """Whether there is no model as such, only a Function for each kind of inputs."""


def make_source(model: Any, cache: CompileCache | None = None) -> ModelSource:
    """Return the source for any kind of model that a module accepts; raises ModelError for what is none.

    The cache, if given, may know the hashes of a file's weights.
    """
    if is_graph(model):
        return TracedModel(model)
    if isinstance(model, StaticModel | BundledTraces):
        return model
    if isinstance(model, Function):
        return StaticModel(model)
    if isinstance(model, type) and (is_graph(model, as_class=True) or is_of_torch(model)):
        raise ModelError(f"{model.__name__} is a class; pass an instance: XRTModule({model.__name__}(...))")
    if isinstance(model, str | os.PathLike):
        return _from_file(Path(model), cache)
    if is_of_torch(model):
        raise ModelError(f"a model of PyTorch's is exported first: {EXPORTING}")
    if isinstance(model, bytes | bytearray) or hasattr(model, "graph"):
        from xrt.formats import onnx

        return StaticModel(onnx.load(bytes(model) if isinstance(model, bytearray) else model))
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise ModelError(
        f"a model is an xrt.Graph, a Function, a torch.nn.Module, or ONNX as a path, bytes or ModelProto; got a {kind}"
    )


def is_graph(model: object, *, as_class: bool = False) -> bool:
    """Whether it is an `xrt.Graph`, or a class of these. The builder is not imported to find out: who has one has imported it."""
    tracing = sys.modules.get("xrt.builder.tracing")
    if tracing is None:
        return False
    return issubclass(model, tracing.Graph) if as_class and isinstance(model, type) else isinstance(model, tracing.Graph)


def _checked(function: Function) -> Function:
    """Return the function with its types inferred; raises ModelError where it is not valid, or the types do not fit."""
    from xrt import passes
    from xrt.graph.state import STATE, declare_states, list_states
    from xrt.graph.verify import verify, verify_types

    verify(function)
    inferred = passes.infer_shapes(function)
    if inferred is not function:
        verify_types(inferred)
    return declare_states(inferred, list_states(inferred)) if STATE in inferred.metadata else inferred


def find_front_end(model: object) -> type | None:
    """Return the class of modules for a model of another library; that library is not imported to find out."""
    kind = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    if not isinstance(kind, type) or not isinstance(model, kind):
        return None
    from xrt.frontends.torch.module import TorchModule

    return TorchModule


def is_of_torch(model: object) -> bool:
    """Whether it is a module or program of PyTorch's, or a class of these; PyTorch is not imported to find out."""
    kinds = model.__mro__ if isinstance(model, type) else type(model).__mro__
    return any(kind.__module__.partition(".")[0] == "torch" for kind in kinds)


def _from_file(path: Path, cache: CompileCache | None) -> StaticModel:
    from xrt.formats.onnx.files import load_file
    from xrt.formats.output import identify_file

    check_not_torch(path)
    stamp = identify_file(path)
    try:
        source = StaticModel(*load_file(path))
    except ModelError as error:
        from xrt.formats.bundle import is_bundle

        if not is_bundle(path):
            raise
        raise ModelError(
            f"{os.fspath(path)!r} is a bundle, which has engines and plans of its own: call xrt.load({os.fspath(path)!r})"
        ) from error
    if cache is not None and cache.disk is not None and cache.disk.weights is not None:
        cache.disk.weights.recall(source.get_declared_function(), path.absolute(), stamp)
    return source


def check_not_torch(path: str | os.PathLike[str]) -> None:
    """Raise ModelError for a file of PyTorch's, which says what to do with it."""
    if Path(path).suffix.lower() in OF_TORCH:
        raise ModelError(f"{os.fspath(path)!r} is a file of PyTorch's by its name, and no ONNX: {EXPORTING}")


def check_declared(source: ModelSource, engines: EngineList, why_sizes: Callable[[], str]) -> None:
    """Raise InputError where the declared types do not tell enough to compile by.

    ``why_sizes`` says why one program cannot serve all sizes; it is asked where engines and model would allow it.
    """
    if not source.inputs or source.key([None] * len(source.inputs), False) is None:
        return
    rigid = [one.spec for one in engines.engines if not one.supports_dynamic_shapes]
    if source.is_traced:
        why = "the graph is traced for its inputs"
    elif rigid and not engines.is_auto:
        why = f"engine {rigid[0]!r} needs every extent fixed"
    elif not (why := why_sizes()):
        return
    raise InputError(f"compile() needs example inputs: {why}; pass m.compile(x, ...)")


class Shaped:
    """Stands for a value of that shape where a model is specialized without values."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


class StaticModel:
    """A Function that is there already; symbolic extents are bound per call where engines want them fixed."""

    is_traced = False

    def __init__(self, function: Function, locations: tuple[str, ...] = ()) -> None:
        """``locations`` are the files of external data that it was read from, as its own file names them."""
        self._function = _checked(function)
        self._locations = locations
        self._set_ends(self._function.inputs, self._function.outputs)

    def _set_ends(self, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._is_static = all(isinstance(value.type, TensorType) and value.type.is_static for value in inputs)

    def key(self, values: Sequence[Any], dynamic: bool) -> object:
        if dynamic or self._is_static:
            return None
        return tuple(getattr(value, "shape", None) for value in values)

    def function(self, values: Sequence[Any], dynamic: bool) -> Function:
        from xrt import passes

        function = self.get_declared_function()
        if dynamic or self._is_static:
            return function
        pairs = zip(self.inputs, values, strict=True)
        return passes.specialize(function, {v.name: x.shape for v, x in pairs if isinstance(v.type, TensorType)})

    def get_declared_function(self) -> Function:
        return self._function

    @property
    def locations(self) -> tuple[str, ...]:
        return self._locations


class TracedModel:
    """An `xrt.Graph`: its `build` runs once per signature."""

    is_traced = True
    outputs: tuple[Value, ...] = ()

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs = tuple(Value(name) for name in graph.input_names)

    def key(self, values: Sequence[Any], dynamic: bool) -> tuple[Type | None, ...]:
        return tuple(inputs.infer_type(value) for value in values)

    def function(self, values: Sequence[Any], dynamic: bool) -> Function:
        function = self.graph.trace(*self.key(values, dynamic))
        if len(function.inputs) > len(values):
            kept = ", ".join(repr(value.name) for value in function.inputs[len(values) :])
            raise InputError(
                f"the graph {function.name!r} keeps state ({kept}); call a session: s = m.new_session(), then s(...)"
            )
        return _checked(function)

    def get_declared_function(self) -> Function:
        if self.inputs:
            raise InputError("an xrt.Graph is traced for its inputs; call the module, or m.compile(*examples), first")
        return self.function([], dynamic=False)


class DeferredModel(StaticModel):
    """A model that is not read before it is needed: a plan in the cache, or the programs of a bundle, do without its nodes."""

    def __init__(self, inputs: tuple[Value, ...], outputs: tuple[Value, ...], load: Callable[[], StaticModel]) -> None:
        self._load = load
        self._set_ends(inputs, outputs)

    @cached_property
    def _model(self) -> StaticModel:
        return self._load()

    def get_declared_function(self) -> Function:
        return self._model.get_declared_function()

    @property
    def locations(self) -> tuple[str, ...]:
        return self._model.locations


class BundledModel(DeferredModel):
    """A model in a bundle."""


def load_unchanged(path: Path, cache: CompileCache, check: Callable[[], None]) -> StaticModel:
    """Return the model in a file; ``check``, called before and after, raises ModelError if one of its files has changed."""
    check()
    try:
        model = _from_file(path, cache)
    except (ModelError, OSError):
        check()
        raise
    check()
    return model


class BundledTraces:
    """The traces of an `xrt.Graph` in a bundle: it runs for the inputs that it was saved for, and for no others."""

    is_traced = True
    outputs: tuple[Value, ...] = ()

    def __init__(self, names: tuple[str, ...], traces: Mapping[tuple[Type | None, ...], Callable[[], Function]]) -> None:
        """Each trace is under the tuple of its inputs' types."""
        self.inputs = tuple(Value(name) for name in names)
        self._traces = traces

    def key(self, values: Sequence[Any], dynamic: bool) -> tuple[Type | None, ...]:
        return tuple(inputs.infer_type(value) for value in values)

    def function(self, values: Sequence[Any], dynamic: bool) -> Function:
        if (key := self.key(values, dynamic)) not in self._traces:
            saved = "; ".join(f"({', '.join(map(str, types))})" for types in self._traces)
            given = ", ".join(map(str, key))
            raise InputError(
                f"the bundle holds traces of a graph for inputs {saved}, and none for ({given}); save it with such an example"
            )
        return self._traces[key]()

    def get_declared_function(self) -> Function:
        if len(self._traces) == 1:
            return next(iter(self._traces.values()))()
        raise InputError(f"the bundle holds {len(self._traces)} traces of a graph; call the module with inputs first")
