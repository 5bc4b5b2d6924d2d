"""XRTModule of a module of PyTorch: captured for the inputs of a call, then run like any Function."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from xrt.errors import InputError, ModelError
from xrt.frontends.torch.capture import Capture, capture
from xrt.frontends.torch.dtypes import share_array, share_tensor
from xrt.frontends.torch.engines import add_torch_engine
from xrt.module.module import XRTModule
from xrt.module.options import parse_options
from xrt.module.tracebacks import shorten_tracebacks
from xrt.verify.progress import ignore_progress

if TYPE_CHECKING:
    from xrt.cache import CompileCache, Signature
    from xrt.engines import GraphCompiler
    from xrt.graph import Function, Value
    from xrt.module.explain import Explanation
    from xrt.module.keywords import ModuleKeywords
    from xrt.module.memory import Memory
    from xrt.module.specialization import Specialization
    from xrt.partition import Plan
    from xrt.placement import TuningResult
    from xrt.runtime import Profile
    from xrt.verify import FailingSubgraph, Verification

__all__ = ["TorchModule"]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A capture with the module that runs it."""

    capture: Capture
    module: XRTModule
    buffers: tuple[torch.Tensor, ...]
    """Buffers of the module that a call updates."""
    watched: tuple[torch.Tensor, ...]
    """Parameters and buffers whose values are in the Function."""
    versions: tuple[int, ...]

    def is_current(self) -> bool:
        """Whether no watched tensor was written to since, as far as PyTorch counts."""
        return all(tensor._version == version for tensor, version in zip(self.watched, self.versions, strict=True))

    def accepts(self, shapes: Sequence[tuple[int, ...] | None]) -> bool:
        """Whether the Function was captured for tensors of these shapes; of a symbolic extent it takes two and more."""
        for index, value in zip(self.capture.inputs, self.capture.function.inputs, strict=False):
            shape, declared = shapes[index] or (), cast("Any", value.type).shape
            if len(shape) != len(declared):
                return False
            if any(have != want if isinstance(want, int) else have < 2 for have, want in zip(shape, declared, strict=True)):
                return False
        return True


@shorten_tracebacks
class TorchModule(XRTModule):
    """A `torch.nn.Module` on a list of engines; what `XRTModule` makes of one.

    A call takes what the module takes, tensors on the CPU or NumPy arrays in any nesting, and returns what the module returns:
    tensors, or arrays where only arrays were given. Tensors are not copied. Only the forward pass is computed, without gradients.

    The module is captured on the first call of each structure of inputs. Where the sizes of a later call differ, it is captured
    again with these sizes symbolic, so that a third size needs no capture. A parameter that was written to, by an optimizer or
    ``load_state_dict``, is noticed in the next call, which captures the module again. PyTorch does not count writes through
    ``.data`` or NumPy: call `recapture` after these.

    Raises InputError for tensors on another device or that require a gradient, ModelError where PyTorch cannot export the module.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        engine: str | GraphCompiler | Sequence[str | GraphCompiler] = "toy",
        device: str = "cpu",
        *,
        cache: CompileCache | str | os.PathLike[str] | None = None,
        **options: Unpack[ModuleKeywords],
    ) -> None:
        parse_options(options)
        self.model = model
        self._arguments: dict[str, Any] = {"engine": engine, "device": device, "cache": cache, **options}
        self._captures: dict[object, list[_Compiled]] = {}
        self._latest: _Compiled | None = None
        self._guard = threading.RLock()
        self._is_closed = False

    # ------------------------------------------------------------------ calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on inputs as the module itself takes them; see the class."""
        leaves, spec, gives_arrays = _flatten(args, kwargs)
        compiled = self._find(leaves, spec)
        results = compiled.module(*_make_feed(compiled, leaves))
        results = results if isinstance(results, tuple) else (results,)
        outputs = [_make_output(leaf, results, leaves) for leaf in compiled.capture.leaves]
        if gives_arrays:
            outputs = [share_array(one) if isinstance(one, torch.Tensor) else one for one in outputs]
        return pytree.tree_unflatten(outputs, compiled.capture.out_spec)

    def _find(self, leaves: list[Any], spec: Any) -> _Compiled:
        """Return the capture for such inputs, the one of the last call or another; captures the module where there is none."""
        key = (spec, self.model.training, tuple(map(_describe, leaves)))
        shapes = [tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        with self._guard:
            if self._is_closed:
                raise InputError("the module is closed; make a new XRTModule")
            known = self._captures.get(key, [])
            if any(not one.is_current() for one in known):
                self.recapture()
                known = []
            found = next((one for one in known if one.accepts(shapes)), None)
            if found is None:
                found = self._capture(leaves, spec, known)
                self._captures.setdefault(key, []).append(found)
            self._latest = found
            return found

    def _capture(self, leaves: list[Any], spec: Any, known: list[_Compiled]) -> _Compiled:
        shapes = [tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        dynamic = _find_varying_axes(known[-1].capture, shapes) if known else None
        if dynamic is not None:
            try:
                found = self._compile(capture(self.model, args, kwargs, _make_dynamic_shapes(self.model, leaves, spec, dynamic)))
                if found.accepts(shapes):
                    return found
            except ModelError:
                pass  # a module that cannot be captured with symbolic sizes is captured for each
        return self._compile(capture(self.model, args, kwargs))

    def _compile(self, found: Capture) -> _Compiled:
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        buffers = tuple(tensors[name] for name in found.buffers)
        watched = tuple(tensor for name, tensor in tensors.items() if name not in found.buffers)
        versions = tuple(tensor._version for tensor in watched)
        is_strict = bool(self._arguments.get("strict"))
        engine = add_torch_engine(self._arguments["engine"], found.function, is_strict=is_strict)
        made = XRTModule(found.function, **{**self._arguments, "engine": engine})
        return _Compiled(found, made, buffers, watched, versions)

    def recapture(self) -> None:
        """Forget every capture: the next call sees the module's parameters and code as they are then."""
        with self._guard:
            for compiled in (one for some in self._captures.values() for one in some):
                compiled.module.close()
            self._captures.clear()
            self._latest = None

    # ------------------------------------------------------------------ the Function and its plan

    @property
    def function(self) -> Function:
        """The Function of the last call; raises InputError before the first."""
        return self._require().capture.function

    @property
    def opaque(self) -> Mapping[str, str]:
        """The operators of the last call's Function that have no ONNX form, each with the reason."""
        return self._require().capture.declined

    def _require(self) -> _Compiled:
        if self._latest is None:
            raise InputError("a module of PyTorch is captured for its inputs; call it, or its compile(*examples), first")
        return self._latest

    def compile(self, *examples: Any, **named: Any) -> Plan:
        """Capture and compile for such inputs without running."""
        compiled, feed = self._prepare(examples, named)
        return compiled.module.compile(*feed)

    def plan_for(self, *args: Any, **named: Any) -> Plan:
        """Return the Plan for such inputs, without compiling."""
        compiled, feed = self._prepare(args, named)
        return compiled.module.plan_for(*feed)

    def save(self, path: str | os.PathLike[str], *examples: Any, **named: Any) -> None:
        """Write a bundle of the Function for such inputs, or of the last call; its inputs are the tensors by name."""
        compiled, feed = self._prepare(examples, named) if examples or named else (self._require(), [])
        compiled.module.save(path, *feed)

    def _prepare(self, args: Any, named: Any) -> tuple[_Compiled, list[Any]]:
        leaves, spec, _ = _flatten(args, named)
        compiled = self._find(leaves, spec)
        return compiled, _make_feed(compiled, leaves)

    def tune(self, *args: Any, budget: float | None = None, progress: Any = None, **named: Any) -> TuningResult:
        """Search again for the fastest placement for such inputs; see `XRTModule.tune`."""
        compiled, feed = self._prepare(args, named)
        return compiled.module.tune(*feed, budget=budget, progress=progress)

    def verify(self, *args: Any, inner: bool = True, progress: Any = ignore_progress, **named: Any) -> Verification:
        """Compare every region with the reference engine on such inputs; see `XRTModule.verify`."""
        compiled, feed = self._prepare(args, named)
        return compiled.module.verify(*feed, inner=inner, progress=progress)

    def bisect(self, *args: Any, progress: Any = ignore_progress, **named: Any) -> FailingSubgraph | None:
        """Return the smallest part of a region that differs from the reference engine; see `XRTModule.bisect`."""
        compiled, feed = self._prepare(args, named)
        return compiled.module.bisect(*feed, progress=progress)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs of the last call's Function: tensors by name, then buffers that are updated."""
        return self._require().module.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs of the last call's Function."""
        return self._require().module.outputs

    @property
    def engines(self) -> tuple[str, ...]:
        """The specs of the engines, first choice first."""
        return self._require().module.engines

    @property
    def threads(self) -> int:
        """The thread budget."""
        return self._require().module.threads

    @property
    def tuned(self) -> TuningResult | None:
        """How the last call was placed by measurement."""
        return self._require().module.tuned

    def profile(self) -> Profile:
        """Return the launch times of the last call's Function."""
        return self._require().module.profile()

    def signatures(self) -> dict[str, Signature]:
        """Return what the regions of the last call's plan are looked up by in the cache."""
        return self._require().module.signatures()

    def memory(self) -> Memory:
        """Return the memory of the last call's Function."""
        return self._require().module.memory()

    def explain(self) -> Explanation:
        """Return the regions of the last call's plan, and why each node is where it is."""
        return self._require().module.explain()

    def _current(self) -> Specialization:
        return self._require().module._current()

    def bind(self, *args: Any, **named: Any) -> Any:
        """Refused: bind the arrays of ``XRTModule(xrt.from_torch(...))``, whose inputs are a flat list."""
        raise InputError("bind() needs a flat list of arrays; bind those of xrt.XRTModule(xrt.from_torch(module, args))")

    def close(self) -> None:
        """Release what was compiled."""
        self.recapture()
        self._is_closed = True

    # ------------------------------------------------------------------ copies

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an XRTModule of PyTorch's is not pickled; pickle the module, and make an XRTModule of it there")

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchModule:
        return TorchModule(copy.deepcopy(self.model, memo), **self._arguments)

    def __copy__(self) -> TorchModule:
        return TorchModule(self.model, **self._arguments)

    def __repr__(self) -> str:
        return f"<XRTModule of {type(self.model).__name__}, captured {sum(map(len, self._captures.values()))} times>"


def _flatten(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any, bool]:
    """Return the leaves of the inputs, arrays as tensors, their structure, and whether arrays alone were given."""
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    for leaf in leaves:
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            torch.export.register_dataclass(type(leaf))
            return _flatten(args, kwargs)
    arrays = any(isinstance(leaf, np.ndarray) for leaf in leaves)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise InputError("an input requires a gradient, and only the forward pass is computed; pass x.detach()")
    return [share_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves], spec, arrays and not tensors


def _describe(leaf: Any) -> object:
    """Return what of a leaf a capture depends on, sizes left out."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.ndim
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    return type(leaf), leaf


def _make_feed(compiled: _Compiled, leaves: list[Any]) -> list[Any]:
    given = [leaves[index] for index in compiled.capture.inputs]
    arrays = [share_array(one) if isinstance(one, torch.Tensor) else np.asarray(one) for one in given]
    return arrays + [share_array(buffer) for buffer in compiled.buffers]


def _make_output(leaf: Any, results: Sequence[Any], leaves: list[Any]) -> Any:
    if leaf.kind == "input":
        return leaves[leaf.index]
    if leaf.kind == "value":
        return leaf.value
    array = results[leaf.index]
    return array.item() if leaf.is_number else share_tensor(array)


# ---------------------------------------------------------------------- sizes that vary


def _find_varying_axes(known: Capture, shapes: Sequence[tuple[int, ...] | None]) -> dict[int, set[int]] | None:
    """Return the axes, by the leaf, that differ from the capture's or are symbolic there; None where one has a size under 2."""
    varying: dict[int, set[int]] = {}
    for index, value in zip(known.inputs, known.function.inputs, strict=False):
        declared, shape = cast("Any", value.type).shape, shapes[index] or ()
        axes = {axis for axis, (a, b) in enumerate(zip(declared, shape, strict=True)) if a != b}
        if any(shape[axis] < 2 for axis in axes):
            return None
        varying[index] = axes
    return varying


def _make_dynamic_shapes(model: torch.nn.Module, leaves: list[Any], spec: Any, varying: Mapping[int, set[int]]) -> Any:
    """Return dynamic shapes in the structure of the inputs, as ``torch.export.export`` takes them: by the names of forward."""
    auto = torch.export.Dim.AUTO
    marks = [dict.fromkeys(varying.get(index, ()), auto) or None for index in range(len(leaves))]
    parts = pytree.tree_unflatten([_Mark(mark) for mark in marks], spec)
    args, kwargs = pytree.tree_map_only(_Mark, lambda mark: mark.axes, parts)
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    parameters = inspect.signature(model.forward).parameters
    shapes: dict[str, Any] = {}
    for name, value in bound.items():
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            shapes.update(value)
        else:
            shapes[name] = value
    return shapes


@dataclass(frozen=True)
class _Mark:
    """The axes of one tensor that are symbolic: a leaf, whatever is in it."""

    axes: dict[int, Any] | None
