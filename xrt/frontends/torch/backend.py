"""The ``xrt`` backend of ``torch.compile``: lower each graph of AOTAutograd to a Function and run it as an XRTModule."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm, is_contiguous_or_false
from torch.utils._python_dispatch import _disable_current_modes

from xrt.builder import Builder
from xrt.builder.record_op import emit
from xrt.engines import names, probe
from xrt.engines.contract.registry import list_by_rank
from xrt.errors import FallbackWarning, ModelError, OptionError, PlanError, warn
from xrt.forking import renew_after_fork
from xrt.frontends.torch.capture import Leaf
from xrt.frontends.torch.dtypes import share_array, share_tensor, to_torch_dtype
from xrt.frontends.torch.lower import BEFORE_LOWERING, Lowering
from xrt.frontends.torch.symbols import Symbols
from xrt.graph import TensorType
from xrt.graph.node import ATEN_DOMAIN
from xrt.module.module import XRTModule
from xrt.module.options import parse_options
from xrt.passes import drop_dead_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node as Call

    from xrt.graph import Function
    from xrt.module.options import ModuleOptions


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A Function plus the mapping from its inputs and outputs to those of the FX graph."""

    function: Function
    inputs: tuple[int, ...]
    """For each input of the Function, the index of the graph's placeholder."""
    axes: tuple[tuple[int, ...], ...]
    """For each output of the Function, the permutation that restores the graph's axis order; () if the order is the same."""
    leaves: tuple[Leaf, ...]
    """For each output of the graph, the source of its value. Entries at `view_indices` are placeholders."""
    view_indices: tuple[int, ...]
    compute_views: Callable[..., Sequence[torch.Tensor]] | None
    """Computes the views from the values of `view_inputs`; None if there are no views."""
    view_inputs: tuple[Leaf, ...]

    def make_outputs(self, results: Any, args: list[Any]) -> Sequence[Any]:
        """Make the outputs of the FX graph from its inputs ``args`` and the results of the Function."""
        results = results if isinstance(results, tuple) else (results,)
        tensors = []
        for array, axes in zip(results, self.axes, strict=True):
            tensor = share_tensor(array)
            tensors.append(tensor.permute(axes) if axes else tensor)
        outputs = [leaf.pick(tensors, args) for leaf in self.leaves]
        if self.compute_views is not None:
            views = self.compute_views(*[leaf.pick(tensors, args) for leaf in self.view_inputs])
            for index, view in zip(self.view_indices, views, strict=True):
                outputs[index] = view
        return outputs


def lower_graph(graph: GraphModule, fixed: Mapping[int, torch.Tensor]) -> LoweredGraph:
    """Lower an FX graph to a Function. ``fixed`` maps indices of placeholders to the tensors that become their constants.

    Raises ModelError if the graph cannot be lowered.
    """
    builder = Builder("graph")
    lowering = Lowering(builder, Symbols({}), uses_torch_generator=True)
    placeholders = [call for call in graph.graph.nodes if call.op == "placeholder"]
    indices: list[int] = []
    with builder:
        # Tensors first: most symbolic sizes can be read from their shapes.
        for index, call in enumerate(placeholders):
            fake = call.meta.get("val")
            if _is_effect_token(call):
                lowering.values[call] = None
            elif index in fixed and isinstance(fake, torch.Tensor) and fake.shape == fixed[index].shape:
                lowering.values[call] = lowering.add_constant(call.name, fixed[index])
            elif isinstance(fake, torch.Tensor):
                lowering.values[call] = lowering.add_input(call.name, fake)
                indices.append(index)
        for index, call in enumerate(placeholders):
            fake = call.meta.get("val")
            if isinstance(fake, torch.SymInt | torch.SymFloat):
                # Symbols that no tensor shape provides are separate inputs.
                if not fake.node.expr.is_number and fake.node.expr not in lowering.symbols.sources:
                    lowering.add_input(call.name, fake)
                    indices.append(index)
                lowering.values[call] = lowering.symbols.make_number(fake)
            elif call not in lowering.values:
                lowering.values[call] = fake
        lowering.run(graph.graph, graph)
        (results,) = next(call.args for call in graph.graph.nodes if call.op == "output")
        outputs = _Outputs(lowering, placeholders)
        view_indices, compute_views, view_inputs = _make_views(results, outputs)
        leaves = tuple(Leaf("value") if index in view_indices else outputs.add(call) for index, call in enumerate(results))
    function = drop_dead_nodes(builder.function())
    return LoweredGraph(function, tuple(indices), tuple(outputs.axes), leaves, view_indices, compute_views, view_inputs)


def _is_effect_token(placeholder: Call) -> bool:
    """Whether AOTAutograd passes an effect token here, which it traces as an empty tensor and is None at run time."""
    return any(
        getattr(user.target, "__name__", "") == "with_effects" and user.args[0] is placeholder for user in placeholder.users
    )


@dataclass(slots=True)
class _Outputs:
    """Adds each output of a graph to the Function once. Inputs, known numbers and None need no output of the Function."""

    lowering: Lowering
    placeholders: list[Call]
    axes: list[tuple[int, ...]] = field(default_factory=list)
    _leaves: dict[Call, Leaf] = field(default_factory=dict)

    def add(self, call: Any) -> Leaf:
        """Make the leaf of a result. Unless it is an input or a number, it becomes an output of the Function, once."""
        if not isinstance(call, torch.fx.Node):
            return Leaf("value", value=call)
        if call in self.placeholders:
            return Leaf("input", self.placeholders.index(call))
        value = self.lowering.values[call]
        if value is None or isinstance(value, bool | int | float):
            return Leaf("value", value=value)
        if call not in self._leaves:
            fake = call.meta.get("val")
            is_number = not isinstance(fake, torch.Tensor)
            tensor = value.scalar if is_number else value
            # The Function returns a tensor in the order of its axes in memory, so that nothing is copied.
            order = None if is_number else _find_memory_order(fake)
            if order:
                tensor = emit("Transpose", tensor, perm=order)
            inverse_order = tuple(order.index(axis) for axis in range(len(order))) if order else ()
            self.axes.append(inverse_order)
            self.lowering.builder.output(tensor, f"output_{len(self.axes)}")
            self._leaves[call] = Leaf("output", len(self.axes) - 1, is_number=is_number)
        return self._leaves[call]


# ---------------------------------------------------------------------- views
#
# Code that runs after the graph relies on the strides that PyTorch traced, and on which outputs are views of the same memory.
# Each call therefore rebuilds the views. Outputs with permuted axes in memory are transposed by the Function, so that nothing
# is copied.


def _make_views(calls: Sequence[Any], outputs: _Outputs) -> tuple[tuple[int, ...], Callable[..., Any] | None, tuple[Leaf, ...]]:
    """Find the outputs that are views; return their indices, the function that computes them, and its inputs.

    A contiguous view is an ordinary output if no other output shares its memory.
    """
    storage_counts = Counter(map(_get_storage, dict.fromkeys(calls)))
    bases: dict[int, Call] = {}
    for index, call in enumerate(calls):
        base = _find_base(call) if _get_storage(call) is not None else call
        is_of_input = base in outputs.placeholders
        # The Function cannot return a tensor whose memory has gaps.
        if base is call or (not is_of_input and _find_memory_order(base.meta["val"]) is None):
            continue
        if is_of_input or storage_counts[_get_storage(call)] > 1 or not is_contiguous_or_false(call.meta["val"]):
            bases[index] = base
    if not bases:
        return (), None, ()
    # Views may depend on symbolic sizes.
    sizes = [call for call in outputs.placeholders if isinstance(call.meta.get("val"), torch.SymInt)]
    module, inputs = _make_view_graph([calls[index] for index in bases], [*dict.fromkeys(bases.values()), *sizes])
    return tuple(bases), module.forward, tuple(map(outputs.add, inputs))


def _find_base(call: Call) -> Call:
    while (parent := _find_parent(call, _get_storage(call))) is not None:
        call = parent
    return call


def _find_parent(call: Call, storage: object) -> Call | None:
    """Find an input of a call, or of the operators with several results that it reads, whose tensor has this storage."""
    for source in call.all_input_nodes:
        if _get_storage(source) == storage:
            return source
        has_several_results = isinstance(source.meta.get("val"), list | tuple)  # such as split
        if has_several_results and (parent := _find_parent(source, storage)) is not None:
            return parent
    return None


def _get_storage(call: Any) -> object:
    """Get the address of the storage of a call's fake tensor; None if it is not a dense tensor."""
    fake = call.meta.get("val") if isinstance(call, torch.fx.Node) else None
    return fake.untyped_storage()._cdata if isinstance(fake, torch.Tensor) and fake.layout is torch.strided else None


def _find_memory_order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Find the order of a tensor's axes in memory: () if it is contiguous, None if its memory has gaps."""
    if is_contiguous_or_false(fake):
        return ()
    order, _ = compute_elementwise_output_logical_to_physical_perm(fake)
    return tuple(order) if is_contiguous_or_false(fake.permute(*order)) else None


def _make_view_graph(views: Sequence[Call], inputs: Sequence[Call]) -> tuple[GraphModule, list[Call]]:
    """Copy the calls that compute ``views`` to a separate graph; return the graph and the calls whose results are its inputs.

    These are ``inputs``, and numbers that ``item`` reads from other tensors. Raises ModelError if a view reads another tensor.
    """
    graph = torch.fx.Graph()
    copies = {call: graph.placeholder(call.name) for call in inputs}
    storages = {_get_storage(call) for call in inputs}

    def is_number_of_other_tensor(call: Call) -> bool:
        is_number = isinstance(call.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
        tensors = [source for source in call.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
        return is_number and any(tensor not in copies for tensor in tensors)

    def copy(call: Call) -> Call:
        is_tensor = isinstance(call.meta.get("val"), torch.Tensor)
        if call in copies:
            return copies[call]
        if is_number_of_other_tensor(call):
            with graph.inserting_before(output):
                copies[call] = graph.placeholder(call.name)
        elif call.op != "call_function" or (is_tensor and _get_storage(call) not in storages):
            raise ModelError(f"an output is a view that depends on the tensor {call.name}, and engines return no views")
        else:
            copies[call] = graph.node_copy(call, copy)
        return copies[call]

    # The output comes first, so that all copies can be inserted before it.
    output = graph.output(())
    with graph.inserting_before(output):
        output.args = ([copy(call) for call in views],)
    return torch.fx.GraphModule({}, graph), [call for call, node in copies.items() if node.op == "placeholder"]


MAX_VARIANTS = 64
"""Maximum number of sets of constant tensors that a graph is compiled for. After these, its parameters become inputs."""
Compiled = Callable[[list[Any]], Sequence[Any]]
"""Runs a graph on a list of inputs, which it empties, and returns the outputs in order."""


def find_static_inputs(inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Find parameters, buffers and module attributes among the inputs of a Dynamo graph, by position."""
    return {
        index: tensor
        for index, tensor in enumerate(inputs)
        if type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and (isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_dynamo_static_input_type", None) is not None)
        and not tensor.is_inference()
    }


class FrozenGraph:
    """Runs a graph compiled with constant parameters. Compiles again for other tensors, and after a write to one.

    ``compile`` is called with the constant tensors, by placeholder index. Writes through NumPy or ``.data`` are not noticed,
    because PyTorch does not count them.
    """

    _boxed_call = True
    """Tells AOTAutograd that arguments are passed as one list."""

    def __init__(self, compile: Callable[[Mapping[int, torch.Tensor]], Compiled], tensors: Mapping[int, torch.Tensor]) -> None:  # noqa: A002  # as elsewhere
        self._compile = compile
        self._indices = tuple(tensors)
        self._lock = renew_after_fork(threading.Lock())
        self._variants: tuple[tuple[tuple[torch.Tensor, ...], list[int], Compiled], ...] = ()
        """Constant tensors, their versions, and the graph compiled with them. The latest variant is first."""
        self._compilations = 0
        self._unfrozen: Compiled | None = None
        self._add(tuple(tensors.values()))

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        tensors = tuple([args[index] for index in self._indices])
        versions = _get_versions(tensors)
        # No lock: the tuple of variants is never modified, only replaced.
        for constants, constant_versions, run in self._variants:
            if constant_versions == versions and all(map(is_, constants, tensors)):
                return run(args)
        with self._lock:
            run = self._unfrozen or self._add(tensors)
        return run(args)

    def _add(self, tensors: tuple[torch.Tensor, ...]) -> Compiled:
        """Compile for these constant tensors, or without constants once `MAX_VARIANTS` is reached."""
        if self._compilations == MAX_VARIANTS:
            warn(
                f"the parameters of a frozen graph of torch.compile were replaced or written to {MAX_VARIANTS} times; "
                f"they are inputs from now on; omit freeze=True",
                FallbackWarning,
            )
            # Compiling at each change costs more than constants save.
            self._unfrozen = self._compile({})
            self._variants = ()
            return self._unfrozen
        self._compilations += 1
        versions = _get_versions(tensors)
        run = self._compile(dict(zip(self._indices, tensors, strict=True)))
        # Replace the variant for older versions of the same tensors.
        other_variants = (variant for variant in self._variants if not all(map(is_, variant[0], tensors)))
        self._variants = ((tensors, versions, run), *other_variants)
        return run


def _get_versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Get PyTorch's counts of writes to the tensors; -1 for inference tensors, whose writes are not counted."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


def check_no_buckets(settings: ModuleOptions) -> None:
    """Raise OptionError if ``shapes`` is `Buckets`, which are only for models with symbolic dims."""
    if not isinstance(settings.shapes, str):
        raise OptionError(
            "shapes=Buckets(...) is not for a module of PyTorch, which is captured with the sizes of a call; "
            "pass XRTModule(xrt.from_torch(module, args, dynamic_shapes=...), ...)"
        )


def add_torch_engine(engine: Any, function: Function, *, is_strict: bool) -> Any:
    """Append engine ``torch`` to the engines if the Function has opaque nodes, which only ``torch`` supports.

    A strict list, ``"auto"`` and None are returned unchanged.
    """
    if engine is None or is_strict:
        return engine
    listed = [engine] if isinstance(engine, str) or not isinstance(engine, Sequence) else list(engine)
    engine_names = [entry if isinstance(entry, str) else getattr(entry, "name", "") for entry in listed]
    if "auto" in engine_names or any(name.partition("{")[0] == "torch" for name in engine_names):
        return engine
    has_opaque_nodes = any(node.domain == ATEN_DOMAIN for _, node in function.walk())
    return [*listed, "torch"] if has_opaque_nodes and _is_usable("torch") else engine


def choose_default_engines() -> list[str]:
    return [next(name for name in list_by_rank() if _is_usable(name))]


def _is_usable(name: str) -> bool:
    return name in names() and probe(name).state == "ready"


def xrt_backend(
    graph: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The backend for ``torch.compile(model, backend="xrt", options={...})``.

    Options are the arguments of `XRTModule` (``engine``, ``cache``, ``threads``, ...) and ``freeze``. With ``freeze=True``,
    parameters and buffers become constants, which engines fold and pack. A write to one, if PyTorch counts it, compiles the graph
    again. In training, parameters that require a gradient remain inputs. The default engine is ONNX Runtime if installed.
    Backward graphs are compiled too. Raises OptionError for an unknown option or a ``mode``.
    """
    arguments = dict(options or {})
    if mode is not None:
        raise OptionError(f"the backend 'xrt' has no modes; got mode={mode!r}. Give options={{'engine': ...}} instead")
    freeze = arguments.pop("freeze", False)
    if not isinstance(freeze, bool):
        raise OptionError(f"freeze must be True or False; got {freeze!r}")
    names = [name for name in arguments if name not in ("engine", "device", "cache")]
    check_no_buckets(parse_options({name: arguments[name] for name in names}, "the backend 'xrt'", ("freeze",)))
    return compile_graph(graph, inputs, arguments, freeze=freeze)


def compile_graph(
    graph: GraphModule,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    *,
    freeze: bool = False,
    modules: list[XRTModule] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with options of `XRTModule`; append each new XRTModule to ``modules``.

    A graph that cannot be lowered, or has an opaque operator that no engine supports, runs in PyTorch with a FallbackWarning.
    """
    from torch._dynamo.backends.common import aot_autograd

    compile_one = partial(_compile, options=options, modules=[] if modules is None else modules)
    static = find_static_inputs(inputs) if freeze else {}

    def compile_forward(forward: GraphModule, fakes: Sequence[Any], *, is_training: bool) -> Compiled:
        context = TracingContext.try_get()
        written = context.fw_metadata.mutated_inp_runtime_indices if context and context.fw_metadata else ()
        # A tensor that the graph writes to cannot be a constant, nor a parameter that an optimizer changes.
        constants = {
            index: tensor
            for index, tensor in static.items()
            if index not in written and not (is_training and tensor.requires_grad)
        }
        # The indices are valid only if AOTAutograd kept all inputs.
        if constants and len(fakes) == len(inputs):
            return FrozenGraph(partial(compile_one, forward), constants)
        return compile_one(forward, {})

    compile_all: Any = aot_autograd(
        fw_compiler=partial(compile_forward, is_training=True),
        bw_compiler=lambda backward, fakes: compile_one(backward, {}),
        inference_compiler=partial(compile_forward, is_training=False),
        decompositions=BEFORE_LOWERING,
    )
    has_lstm = any(getattr(call.target, "__name__", "") == "lstm" for call in graph.graph.nodes)
    with _without_onednn() if has_lstm and torch.is_grad_enabled() else nullcontext():
        return compile_all(graph, inputs)  # type: ignore[no-any-return]  # untyped there


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Disable oneDNN: its LSTM saves a workspace tensor that only PyTorch's own gradient can read."""
    # Not `torch.backends.mkldnn.flags`, which also warns about TF32 and stores the precision of its caller.
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


def _compile(
    graph: GraphModule, fixed: Mapping[int, torch.Tensor], *, options: Mapping[str, Any], modules: list[XRTModule]
) -> Compiled:
    try:
        # AOTAutograd's fake tensor mode is active here, but constants are real tensors.
        with _disable_current_modes():
            lowered = lower_graph(graph, fixed)
    except ModelError as error:
        warn(f"a graph of torch.compile runs in PyTorch: {error}", FallbackWarning)
        return make_boxed_func(graph.forward)  # type: ignore[no-any-return]  # untyped there
    # A graph that only returns inputs and views of them needs no engine.
    if not lowered.function.outputs:
        return make_boxed_func(graph.forward)  # type: ignore[no-any-return]  # untyped there
    engine = options.get("engine") or choose_default_engines()
    arguments = {**options, "engine": add_torch_engine(engine, lowered.function, is_strict=bool(options.get("strict")))}
    module = XRTModule(lowered.function, **arguments)
    modules.append(module)
    dtypes = [to_torch_dtype(value.type.dtype) for value in lowered.function.inputs if isinstance(value.type, TensorType)]
    inputs = list(zip(lowered.inputs, dtypes, strict=True))
    is_declined = False
    is_opaque = any(node.domain == ATEN_DOMAIN for _, node in lowered.function.walk()) and not options.get("strict")

    def run(args: list[Any]) -> Sequence[Any]:
        nonlocal is_declined
        if is_declined:
            return graph.forward(*args)  # type: ignore[no-any-return]  # untyped there
        try:
            results = module(*[_make_array(args[index], dtype) for index, dtype in inputs])
        except PlanError as error:
            # Only a graph with opaque operators may fall back to PyTorch.
            if not is_opaque:
                raise
            is_declined = True
            warn(f"a graph of torch.compile runs in PyTorch: {error}", FallbackWarning)
            return graph.forward(*args)  # type: ignore[no-any-return]  # untyped there
        outputs = lowered.make_outputs(results, args)
        # Boxed calling convention: release the inputs early.
        args.clear()
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]  # tells AOTAutograd that arguments are passed as one list
    return run


def _make_array(value: Any, dtype: torch.dtype) -> np.ndarray[Any, Any]:
    """Convert an argument of the graph to an array; a tensor of type ``dtype`` shares its memory with the array."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    # Dynamo passes a Python float as a tensor, whose type may differ.
    return share_array(value if value.dtype is dtype else value.to(dtype))
