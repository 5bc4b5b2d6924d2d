"""XRTModule of a PyTorch module: captured per input structure, or split into parts where capture fails."""

from __future__ import annotations

import copy
import itertools
import os
import struct
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from xrt.cache import open_cache
from xrt.cache.memory import MIN_BYTES, close_in_background
from xrt.errors import DataDependentError, FallbackWarning, InputError, ModelError, OptionError, PlanError, warn
from xrt.forking import renew_after_fork
from xrt.frontends.torch.backend import add_torch_engine, check_no_buckets, compile_graph
from xrt.frontends.torch.capture import (
    Capture,
    ModuleState,
    capture,
    check_keywords,
    check_module,
    drop_warnings,
    list_tensor_names,
    register_dataclasses,
)
from xrt.frontends.torch.dtypes import is_shared, share_array, share_tensor
from xrt.html.views import format_count
from xrt.module.dispatch import warn_of_evictions
from xrt.module.engines import check_budget, make_engine_list
from xrt.module.module import XRTModule, shorten_tracebacks
from xrt.module.options import parse_options
from xrt.module.tuning import THROUGHPUT_KEYWORDS, Objective
from xrt.verify.regions import ignore_progress

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.module.keywords import ModuleKeywords
    from xrt.partition import Plan
    from xrt.verify import FailingSubgraph, Verification


def flatten(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any, list[Any]]:
    """Flatten the inputs of a call; return the leaves with arrays converted to tensors, the structure, and the original leaves.

    Raises InputError for a tensor that requires a gradient.
    """
    leaves = [*args, *kwargs.values()]
    types = set(map(type, leaves))
    # Without nesting: the number of positional inputs and the keyword names, which is faster than the structure of a pytree.
    structure: Any = (len(args), *kwargs)
    if not types <= {torch.Tensor, np.ndarray}:
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        if register_dataclasses(leaves):
            return flatten(args, kwargs)
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves if isinstance(leaf, torch.Tensor)):
        raise InputError("an input requires a gradient, and only the forward pass is computed; pass x.detach()")
    # The common case returns without a pass over the leaves.
    if types == {torch.Tensor}:
        return leaves, structure, leaves
    return [share_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves], structure, leaves


def unflatten(leaves: Sequence[Any], structure: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(structure, tuple):
        return pytree.tree_unflatten(leaves, structure)  # type: ignore[no-any-return]  # untyped there
    count, *names = structure
    return tuple(leaves[:count]), dict(zip(names, leaves[count:], strict=True))


def returns_arrays(leaves: list[Any]) -> bool:
    return any(isinstance(leaf, np.ndarray) for leaf in leaves) and not any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def list_shapes(leaves: Sequence[Any]) -> tuple[tuple[int, ...] | None, ...]:
    return tuple([leaf.shape if isinstance(leaf, torch.Tensor) else None for leaf in leaves])


def describe_leaf(leaf: Any) -> object:
    """Describe what a capture depends on in an input leaf, without the sizes of a tensor, as a dict key."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.ndim
    if isinstance(leaf, float | complex):
        number = complex(leaf)
        # Compared by bits: NaN is not equal to itself, and 0.0 is equal to -0.0, which may give another result.
        return type(leaf), struct.pack("dd", number.real, number.imag)
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), _ByIdentity(leaf)
    return type(leaf), leaf


@dataclass(frozen=True)
class _ByIdentity:
    """A key for a value that has no hash."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def collect_arrays(capture: Capture, leaves: list[Any], buffers: list[torch.Tensor]) -> list[Any]:
    """Collect the inputs of a capture's Function: arrays of the user's inputs, then of the updated buffers."""
    inputs = [leaves[index] for index in capture.inputs]
    arrays = [share_array(value) if isinstance(value, torch.Tensor) else np.asarray(value) for value in inputs]
    return arrays + [share_array(buffer) for buffer in buffers]


def find_shared_memory(tensors: Sequence[torch.Tensor | None], written: Collection[int]) -> tuple[int, int] | None:
    """Find two tensors that share memory and of which at least one is written to; return their indices, or None.

    ``written`` has the indices of the tensors that are written to. Sparse and quantized tensors, and those on ``meta``, are
    skipped.
    """
    arrays = {}
    for index, tensor in enumerate(tensors):
        if tensor is None or tensor.layout is not torch.strided or tensor.is_quantized:
            continue
        if tensor.device.type == "cpu" and tensor.numel() > 0:
            arrays[index] = share_array(tensor)
    written = frozenset(written)
    # Sorted by address, each array is compared only with earlier arrays that end after its start. Comparing all pairs would be
    # slow, and this runs in each call that updates a buffer.
    overlapping: list[tuple[int, int]] = []  # end address and index of such earlier arrays
    for start, end, index in sorted((*np.lib.array_utils.byte_bounds(array), index) for index, array in arrays.items()):
        overlapping = [entry for entry in overlapping if entry[0] > start]
        for _, other in overlapping:
            if (index in written or other in written) and _have_common_element(arrays[index], arrays[other]):
                return min(index, other), max(index, other)
        overlapping.append((end, index))
    return None


def _have_common_element(array: Any, other: Any) -> bool:
    try:
        return np.shares_memory(array, other, max_work=100_000)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        # Undecided within max_work: an error is better than wrong results.
        return True


def find_varying_axes(capture: Capture, shapes: Sequence[tuple[int, ...] | None]) -> dict[int, set[int]] | None:
    """Find the axes whose size is symbolic in the capture or differs from it, by leaf. None if one of these sizes is below 2."""
    varying: dict[int, set[int]] = {}
    for index, value in zip(capture.inputs, capture.function.inputs, strict=False):
        declared = cast("Any", value.type).shape
        shape = shapes[index] or ()  # a number has no axes
        axes = {axis for axis, (size, actual) in enumerate(zip(declared, shape, strict=True)) if size != actual}
        # torch.export cannot make sizes 0 and 1 symbolic.
        if any(shape[axis] < 2 for axis in axes):
            return None
        varying[index] = axes
    return varying


class SplitModule:
    def __init__(self, model: torch.nn.Module, arguments: Mapping[str, Any]) -> None:
        self._modules: list[XRTModule] = []
        backend = partial(compile_graph, options=arguments, freeze=True, modules=self._modules)
        self._compiled = torch.compile(model, backend=backend)

    @property
    def parts(self) -> tuple[XRTModule, ...]:
        return tuple(self._modules)

    def run(self, leaves: list[Any], structure: Any, originals: list[Any]) -> Any:
        """Run on inputs flattened by `flatten`; return arrays if all inputs are arrays."""
        args, kwargs = unflatten(leaves, structure)
        # Dynamo warns about graph breaks, which are intended here.
        with torch.no_grad(), drop_warnings("torch._dynamo.variables.tensor"):
            result = self._compiled(*args, **kwargs)
        if not returns_arrays(originals):
            return result
        # The fields of a dataclass may be dataclasses, which are leaves only once the outer one is registered.
        while register_dataclasses(pytree.tree_leaves(result)):
            pass
        return pytree.tree_map_only(torch.Tensor, share_array, result)

    def close(self) -> None:
        for module in self._modules:
            module.close()


def split(model: torch.nn.Module, arguments: Mapping[str, Any], error: ModelError | PlanError) -> SplitModule:
    """Split a module that cannot be captured because of ``error``, with a warning. With ``strict``, raise ``error`` instead."""
    if arguments.get("strict"):
        raise error
    reason = f"has operators that no engine supports ({error})" if isinstance(error, PlanError) else "branches on data"
    warn(
        f"{type(model).__name__} {reason} and runs in parts, into which torch.compile splits it; "
        f".parts are their modules, each with a plan of its own",
        FallbackWarning,
    )
    return SplitModule(model, arguments)


@dataclass(slots=True, eq=False)
class _CapturedModule:
    capture: Capture
    module: XRTModule
    state: ModuleState
    buffers: tuple[int, ...]
    """Indices in `ModuleState.tensors` of the buffers that the capture updates."""
    key: object = None
    last_call: int = 0
    accepted_shapes: set[object] = field(default_factory=set)
    """Shapes of the leaves, from `list_shapes`, for which `accepts` has returned True."""

    def accepts(self, leaves: Sequence[Any]) -> bool:
        """Whether the capture is valid for the sizes of these leaves."""
        shapes = list_shapes(leaves)
        if shapes in self.accepted_shapes:
            return True
        for index, value in zip(self.capture.inputs, self.capture.function.inputs, strict=False):
            shape = shapes[index] or ()  # a number has no axes
            declared = cast("Any", value.type).shape
            if len(shape) != len(declared):
                return False
            for actual, size in zip(shape, declared, strict=True):
                # Symbolic sizes are at least 2: torch.export cannot make 0 and 1 symbolic.
                is_accepted = actual == size if isinstance(size, int) else actual >= 2
                if not is_accepted:
                    return False
        if self.capture.guards is not None:
            try:
                self.capture.guards(*leaves)
            except Exception:  # noqa: BLE001  # PyTorch's guards raise arbitrary errors
                return False
        if len(self.accepted_shapes) < MAX_ACCEPTED_SHAPES:
            self.accepted_shapes.add(shapes)
        return True


def _name_shared_memory(error: ModelError, model: torch.nn.Module, state: ModuleState) -> ModelError:
    """If two tensors of the module share memory, return the error with their names added, as the likely cause."""
    # Tied parameters are one tensor with several names, which is no error.
    by_identity = {id(tensor): (name, tensor) for name, tensor in zip(list_tensor_names(model), state.tensors, strict=True)}
    names = [name for name, _ in by_identity.values()]
    tensors = [tensor for _, tensor in by_identity.values()]
    shared = find_shared_memory(tensors, range(len(tensors)))
    if shared is None:
        return error
    first, second = (names[index] for index in shared)
    return ModelError(
        f"{error}; {first!r} and {second!r} share memory: if the module writes to one of them in place, make them one buffer or "
        f"clone() one"
    )


MAX_ACCEPTED_SHAPES = 1024
"""Maximum length of `accepted_shapes`. Further shapes are checked again in each call."""


def _read_last(name: str, doc: str) -> Any:
    return property(lambda self: getattr(self._require().module, name), doc=doc)


@shorten_tracebacks
class TorchModule:
    """A `torch.nn.Module` on a list of engines; `XRTModule` returns it for such a model.

    A call takes the inputs of the module, as CPU tensors or NumPy arrays in any nesting, and returns its result: tensors, or
    arrays if all inputs are arrays. Tensors are not copied. Only the forward pass is computed, without gradients.

    The module is captured on the first call per input structure. When sizes change, it is captured again with these sizes
    symbolic. Further sizes then need no capture unless the module branches on them. When a parameter, buffer or submodule was
    replaced or written to, the next call captures the module again. Call `recapture` after a change that is not noticed: a write
    through ``.data`` or NumPy, or of a Python attribute. All captures together hold at most the ``max_bytes`` of the cache. Do
    not run the module elsewhere while a call captures it.

    A module that branches on data, or has an operator that no engine supports, runs in `parts` with a FallbackWarning; with
    ``strict`` it raises an error.

    Raises InputError for tensors on another device or that require a gradient, ModelError if PyTorch cannot export the module.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        engine: str | GraphCompiler | Sequence[str | GraphCompiler] | None = None,
        device: str = "cpu",
        *,
        cache: CompileCache | str | os.PathLike[str] | None = None,
        **options: Unpack[ModuleKeywords],
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            check_module(model)
        settings = parse_options(options)
        check_no_buckets(settings)
        if "budget" in options:
            check_budget(engine)
        if engine is not None:
            # Raises an error for an unavailable engine now, not in the first call.
            make_engine_list(engine, device, settings, cache=open_cache(cache))
        self._max_bytes = open_cache(cache).max_bytes
        self.model = model
        self._arguments: dict[str, Any] = {"engine": engine, "device": device, "cache": cache, **options}
        self._captures: dict[object, list[_CapturedModule]] = {}
        self._latest: _CapturedModule | None = None
        self._split: SplitModule | None = None
        self._calls = 0
        self._guard = renew_after_fork(threading.RLock())
        self._is_closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure, originals = flatten(args, kwargs)
        if kwargs:
            check_keywords(self.model, kwargs)
        if self._split is not None and not self._is_closed:
            return self._split.run(leaves, structure, originals)
        try:
            compiled, buffers, results = self._run(leaves, structure, originals)
        except (DataDependentError, PlanError) as error:  # from now on, run the model in parts, if that helps
            if isinstance(error, PlanError) and not (self._latest and self._latest.capture.opaque):
                raise
            with self._guard:
                self._split = self._split or split(self.model, self._arguments, error)
            return self._split.run(leaves, structure, originals)
        results = results if isinstance(results, tuple) else (results,)
        # Count the writes of the engines, which PyTorch does not see, for autograd.
        if written := [*buffers, *(leaves[index] for index in compiled.capture.updated)]:
            torch.autograd.graph.increment_version(written)
        tensors = [share_tensor(result) for result in results]
        outputs = [leaf.pick(tensors, leaves) for leaf in compiled.capture.leaves]
        if returns_arrays(originals):
            outputs = [share_array(output) if isinstance(output, torch.Tensor) else output for output in outputs]
        return pytree.tree_unflatten(outputs, compiled.capture.out_spec)

    def _run(self, leaves: list[Any], structure: Any, originals: list[Any]) -> tuple[_CapturedModule, list[Any], Any]:
        """Find or make the capture for these inputs and run it; return the capture, the updated buffers, and the results."""
        while True:
            compiled, buffers = self._find(leaves, structure)
            for index in compiled.capture.updated:
                if not is_shared(originals[index]):
                    raise InputError(
                        "the module updates an input in place, and the one given cannot be: it is read-only, runs backwards, "
                        "or is a conjugate or negative view; pass a copy of it"
                    )
            if compiled.capture.updated or buffers:
                self._check_memory(compiled, leaves, buffers)
            try:
                return compiled, buffers, compiled.module(*collect_arrays(compiled.capture, leaves, buffers))
            except InputError:
                # Another thread may have dropped the capture in between. Then try again.
                if self._is_closed or not compiled.module.dispatcher.is_closed:
                    raise

    def _check_memory(self, compiled: _CapturedModule, leaves: list[Any], buffers: list[torch.Tensor]) -> None:
        """Raise InputError if a tensor that the module writes to shares memory with another tensor of the call."""
        capture = compiled.capture
        # `names` and `tensors` list the inputs, the updated buffers and, if inputs are updated, the module's other tensors.
        names = [f"input {value.name!r}" for value in capture.function.inputs[: len(capture.inputs)]]
        values = [leaves[index] for index in capture.inputs]
        tensors: list[Any] = [value if isinstance(value, torch.Tensor) else None for value in values]
        written = {capture.inputs.index(leaf) for leaf in capture.updated}
        written.update(range(len(tensors), len(tensors) + len(buffers)))
        names += [f"buffer {name!r}" for name in capture.buffers]
        tensors += buffers
        if capture.updated:
            for name, tensor in zip(list_tensor_names(self.model), compiled.state.tensors, strict=True):
                if all(tensor is not buffer for buffer in buffers):
                    names.append(f"{name!r} of the module")
                    tensors.append(tensor)
        if shared := find_shared_memory(tensors, written):
            first, second = (names[index] for index in shared)
            raise InputError(
                f"{first} and {second} share memory, and the module writes to one of them in place; "
                f"pass a copy of one: x.clone(), or x.copy() of an array"
            )

    def _find(self, leaves: list[Any], structure: Any) -> tuple[_CapturedModule, list[Any]]:
        """Find or make the capture for these inputs; return it and the buffers that it updates."""
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        with self._guard:
            if self._is_closed:
                raise InputError("the module is closed; make a new XRTModule")
            state = ModuleState.read(self.model)
            key = (structure, state.training, autocast, tuple(map(describe_leaf, leaves)))
            candidates = self._captures.get(key, [])
            # All captures were made from the same parameters, so if one is stale, all are.
            if any(not candidate.state.is_capture_valid(state, candidate.buffers) for candidate in candidates):
                self.recapture()
                candidates = []
            compiled = next((candidate for candidate in candidates if candidate.accepts(leaves)), None)
            self._calls += 1
            if compiled is None:
                compiled = self._capture(leaves, structure, candidates, state)
                compiled.key = key
                compiled.last_call = self._calls  # before the eviction, which keeps the most recently used one
                self._captures.setdefault(key, []).append(compiled)
                self._evict()
            compiled.last_call = self._calls
            self._latest = compiled
            return compiled, [state.tensors[index] for index in compiled.buffers]

    def _evict(self) -> None:
        """Drop the least recently used captures while all together exceed the cache's limit; keep the most recently used one."""
        captures = sorted(itertools.chain.from_iterable(self._captures.values()), key=lambda compiled: compiled.last_call)
        sizes = [max(MIN_BYTES, compiled.module.dispatcher.nbytes) for compiled in captures]
        surplus = sum(sizes) - self._max_bytes
        if surplus <= 0 or len(captures) == 1:
            return
        for compiled, size in zip(captures[:-1], sizes, strict=False):
            if surplus > 0:
                surplus -= size
                self._captures[compiled.key].remove(compiled)
                if not self._captures[compiled.key]:
                    del self._captures[compiled.key]
                close_in_background(compiled.module.close)
        warn_of_evictions(self._max_bytes)

    def _capture(self, leaves: list[Any], structure: Any, earlier: list[_CapturedModule], state: ModuleState) -> _CapturedModule:
        """Capture the module for these inputs. Sizes that differ from an earlier capture become symbolic if possible."""
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                share_array(leaf)  # raises an error for a tensor that is not dense or not on the CPU
        tensors = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        if find_shared_memory([*tensors, *state.tensors], range(len(leaves))):
            # The capture gets copies. Calls pass the caller's tensors.
            leaves = [leaf if tensor is None else tensor.clone() for leaf, tensor in zip(leaves, tensors, strict=True)]
        args, kwargs = unflatten(leaves, structure)
        varying = find_varying_axes(earlier[-1].capture, list_shapes(leaves)) if earlier else None
        if varying is not None:
            marked = torch.export.ShapesCollection()
            for index, axes in varying.items():
                marked[leaves[index]] = dict.fromkeys(axes, torch.export.Dim.AUTO)
            try:
                shapes = marked.dynamic_shapes(self.model, args, kwargs)
                compiled = self._compile(capture(self.model, args, kwargs, shapes, allow_guards=True), state)
                if compiled.accepts(leaves):
                    return compiled
            except ModelError:
                pass  # capture with static sizes instead
        try:
            return self._compile(capture(self.model, args, kwargs), state)
        except DataDependentError:
            raise
        except ModelError as error:
            raise _name_shared_memory(error, self.model, state) from error.__cause__

    def _compile(self, capture: Capture, state: ModuleState) -> _CapturedModule:
        is_strict = bool(self._arguments.get("strict"))
        engine = add_torch_engine(self._arguments["engine"], capture.function, is_strict=is_strict)
        names = list_tensor_names(self.model)
        buffers = tuple(names.index(name) for name in capture.buffers)
        return _CapturedModule(capture, XRTModule(capture.function, **{**self._arguments, "engine": engine}), state, buffers)

    def recapture(self) -> None:
        """Drop all captures, so that the next call captures the module's current parameters and code."""
        with self._guard:
            for compiled in itertools.chain.from_iterable(self._captures.values()):
                compiled.module.close()
            self._captures.clear()
            self._latest = None
            if self._split is not None:
                self._split.close()
                self._split = None

    @property
    def parts(self) -> tuple[XRTModule, ...]:
        """The modules of the parts, in the order of their first calls, if the module runs in parts; else empty."""
        return () if self._split is None else self._split.parts

    @property
    def function(self) -> Function:
        """The Function of the last call; raises InputError before the first."""
        return self._require().capture.function

    @property
    def opaque(self) -> Mapping[str, str]:
        """Maps each operator that became an opaque node in the last call's Function to the reason."""
        return self._require().capture.opaque

    def _require(self) -> _CapturedModule:
        if self._split is not None:
            raise InputError(
                f"{type(self.model).__name__} runs in parts, into which torch.compile splits it; ask one of its .parts"
            )
        if self._latest is None:
            raise InputError("a module of PyTorch is captured for its inputs; call it, or its compile(*examples), first")
        return self._latest

    def compile(self, *examples: Any, **kwargs: Any) -> Plan:
        """Capture and compile for these inputs without running."""
        compiled, feed = self._prepare(examples, kwargs)
        return compiled.module.compile(*feed)

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """Make the plan for these inputs, without compiling."""
        compiled, feed = self._prepare(args, kwargs)
        return compiled.module.plan_for(*feed)

    def save(self, path: str | os.PathLike[str], *examples: Any, example: bool = True, **kwargs: Any) -> None:
        """Write a bundle for these inputs, or for those of the last call. The bundle's inputs are their tensors, by name."""
        compiled, feed = self._prepare(examples, kwargs) if examples or kwargs else (self._require(), [])
        compiled.module.save(path, *feed, example=example)

    def _prepare(self, args: Any, kwargs: Any) -> tuple[_CapturedModule, list[Any]]:
        leaves, structure, _ = flatten(args, kwargs)
        if self._split is not None:
            self._require()
        compiled, buffers = self._find(leaves, structure)
        return compiled, collect_arrays(compiled.capture, leaves, buffers)

    def tune(
        self, *args: Any, objective: Objective = "latency", budget: float | None = None, progress: Any = None, **kwargs: Any
    ) -> Any:
        """Search for the best placement for these inputs, with the keywords of `XRTModule.tune`."""
        limits: dict[str, Any] = {}
        if objective != "latency":
            limits = {name: kwargs.pop(name) for name in THROUGHPUT_KEYWORDS if name in kwargs}
        compiled, feed = self._prepare(args, kwargs)
        return compiled.module.tune(*feed, objective=objective, budget=budget, progress=progress, **limits)

    def verify(self, *args: Any, inner: bool = True, progress: Any = ignore_progress, **kwargs: Any) -> Verification:
        """Compare all regions with the reference engine on these inputs; see `XRTModule.verify`."""
        compiled, feed = self._prepare(args, kwargs)
        return compiled.module.verify(*feed, inner=inner, progress=progress)

    def bisect(self, *args: Any, progress: Any = ignore_progress, **kwargs: Any) -> FailingSubgraph | None:
        """Find the smallest part of a region that differs from the reference engine; see `XRTModule.bisect`."""
        compiled, feed = self._prepare(args, kwargs)
        return compiled.module.bisect(*feed, progress=progress)

    inputs = _read_last("inputs", "Inputs of the last call's Function: tensors by name, then updated buffers.")
    outputs = _read_last("outputs", "Outputs of the last call's Function.")
    engines = _read_last("engines", "Engine specs in order of preference.")
    threads = _read_last("threads", "The thread budget.")
    plan = _read_last("plan", "The Plan of the last call's Function.")
    specialization = _read_last("specialization", "The specialization of the last call's Function.")
    tuned = _read_last("tuned", "The measured placement of the last call.")
    serving = _read_last("serving", "The serving configuration of the last call's Function if tuned for throughput, else None.")
    profile = _read_last("profile", "Launch times of the last call's Function.")
    signatures = _read_last("signatures", "Cache signatures of the last call's regions.")
    memory = _read_last("memory", "Memory of the last call's Function.")
    explain = _read_last("explain", "Regions of the last call's plan, and the reason for each node's placement.")

    def calibrate(self, *_: Any, **__: Any) -> Any:
        """Not supported: calibrate ``XRTModule(xrt.from_torch(...))`` instead, whose values have names."""
        raise OptionError("a module of PyTorch is calibrated as xrt.XRTModule(xrt.from_torch(module, args))")

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported: bind arrays of ``XRTModule(xrt.from_torch(...))`` instead, whose inputs are a flat list."""
        raise InputError("bind() needs a flat list of arrays; bind those of xrt.XRTModule(xrt.from_torch(module, args))")

    def new_session(self, sizes: Mapping[str, int] | None = None) -> Any:
        """Not supported: use ``XRTModule(xrt.stateful(xrt.from_torch(...), pairs))`` instead, whose state has names."""
        raise InputError(
            "a session needs named state; make it of xrt.XRTModule(xrt.stateful(xrt.from_torch(module, args), pairs))"
        )

    def close(self) -> None:
        self.recapture()
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, with a hint if the PyTorch module has the attribute."""
        model = self.__dict__.get("model")
        hint = f"; its module of PyTorch has one: .model.{name}" if hasattr(model, name) else ""
        raise AttributeError(f"an XRTModule of {type(model).__name__} has no attribute {name!r}{hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an XRTModule of PyTorch's is not pickled; pickle the module, and make an XRTModule of it there")

    def _repr_html_(self) -> str:
        """The plan of the last call for a notebook; the repr before the first call."""
        from html import escape  # only for notebooks

        return self._latest.module._repr_html_() if self._latest is not None else f"<pre>{escape(repr(self))}</pre>"

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchModule:
        return TorchModule(copy.deepcopy(self.model, memo), **self._arguments)

    def __copy__(self) -> TorchModule:
        return TorchModule(self.model, **self._arguments)

    def __repr__(self) -> str:
        return f"<XRTModule of {type(self.model).__name__}, {format_count(sum(map(len, self._captures.values())), 'capture')}>"


XRTModule.register(TorchModule)  # `XRTModule(model)` returns it for a `torch.nn.Module`
