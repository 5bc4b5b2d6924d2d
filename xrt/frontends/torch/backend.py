"""The ``xrt`` backend of ``torch.compile``: lower each graph of AOTAutograd to a Function and run it as an XRTModule."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
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
from xrt.graph.node import DOMAIN
from xrt.module.module import XRTModule
from xrt.module.options import parse_options
from xrt.passes import drop_dead_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node as Call

    from xrt.graph import Function
    from xrt.module.options import ModuleOptions


# ---------------------------------------------------------------------- from a graph of AOTAutograd to a Function


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A Function plus the mapping from its inputs and outputs to those of the FX graph."""

    function: Function
    inputs: tuple[int, ...]
    """For each input of the Function, the index of the graph's placeholder."""
    axes: tuple[tuple[int, ...], ...]
    """For each output of the Function, the permutation that restores the graph's axis order; () if the orders are equal."""
    leaves: tuple[Leaf, ...]
    """For each output of the graph, where its value comes from. Views, in `viewed`, are computed by `views`."""
    viewed: tuple[int, ...]
    """Indices of graph outputs that are views."""
    views: Callable[..., Sequence[torch.Tensor]] | None
    """Computes the views from the values of `bases`; None if there are no views."""
    bases: tuple[Leaf, ...]
    """The tensors and numbers that the views are computed from."""


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
                lowering.values[call] = lowering.symbols.number(fake)
            elif call not in lowering.values:
                lowering.values[call] = fake
        lowering.run(graph.graph, graph)
        (results,) = next(call.args for call in graph.graph.nodes if call.op == "output")
        outputs = _Outputs(lowering, placeholders)
        viewed, views, bases = _make_views(results, outputs)
        leaves = tuple(Leaf("value") if index in viewed else outputs.add(call) for index, call in enumerate(results))
    return LoweredGraph(drop_dead_nodes(builder.function()), tuple(indices), tuple(outputs.axes), leaves, viewed, views, bases)


def _is_effect_token(placeholder: Call) -> bool:
    """Whether this is an AOTAutograd effect token: traced as an empty tensor, None at run time."""
    return any(
        getattr(user.target, "__name__", "") == "with_effects" and user.args[0] is placeholder for user in placeholder.users
    )


@dataclass(slots=True)
class _Outputs:
    """Adds outputs to a Function, each once. Graph outputs that are inputs, known numbers or None need no output."""

    lowering: Lowering
    placeholders: list[Call]
    axes: list[tuple[int, ...]] = field(default_factory=list)
    _leaves: dict[Call, Leaf] = field(default_factory=dict)

    def add(self, call: Any) -> Leaf:
        if not isinstance(call, torch.fx.Node):
            return Leaf("value", value=call)
        if call not in self._leaves:
            self._leaves[call] = self._add(call)
        return self._leaves[call]

    def _add(self, call: Call) -> Leaf:
        """Add the output of a call that returns a tensor or a computed number."""
        if call in self.placeholders:
            return Leaf("input", self.placeholders.index(call))
        value, fake = self.lowering.values[call], call.meta.get("val")
        if value is None or isinstance(value, bool | int | float):
            return Leaf("value", value=value)
        is_number = not isinstance(fake, torch.Tensor)
        order = () if is_number else _find_memory_order(fake) or ()
        self.axes.append(tuple(order.index(axis) for axis in range(len(order))))
        tensor = value.scalar if is_number else emit("Transpose", value, perm=order) if order else value
        self.lowering.builder.output(tensor, f"output_{len(self.axes)}")
        return Leaf("output", len(self.axes) - 1, is_number=is_number)


# ---------------------------------------------------------------------- views
#
# Code that runs after the graph relies on the strides that PyTorch traced, and on which outputs are views of the same memory.
# Each call therefore rebuilds the views. Outputs with permuted axes in memory are transposed by the Function, so that nothing
# is copied.


def _make_views(calls: Sequence[Any], outputs: _Outputs) -> tuple[tuple[int, ...], Callable[..., Any] | None, tuple[Leaf, ...]]:
    """Find the outputs that are views; return their indices, the function that computes them, and its inputs.

    A contiguous view is an ordinary output if no other output shares its memory.
    """
    used = Counter(map(_get_storage, dict.fromkeys(calls)))
    sources: dict[int, Call] = {}
    for index, call in enumerate(calls):
        base = _find_base(call) if _get_storage(call) is not None else call
        if base is call or (base not in outputs.placeholders and _find_memory_order(base.meta["val"]) is None):
            continue
        if base in outputs.placeholders or used[_get_storage(call)] > 1 or not is_contiguous_or_false(call.meta["val"]):
            sources[index] = base
    # Views may depend on symbolic sizes.
    numbers = [call for call in outputs.placeholders if isinstance(call.meta.get("val"), torch.SymInt)]
    if not sources:
        return (), None, ()
    module, read = _make_view_graph([calls[index] for index in sources], [*dict.fromkeys(sources.values()), *numbers])
    return tuple(sources), module.forward, tuple(map(outputs.add, read))


def _find_base(call: Call) -> Call:
    """Find the call that allocated the memory of this call's tensor."""
    while (parent := _find_parent(call, _get_storage(call))) is not None:
        call = parent
    return call


def _find_parent(call: Call, storage: object) -> Call | None:
    for source in call.all_input_nodes:
        if _get_storage(source) == storage:
            return source
        if isinstance(source.meta.get("val"), list | tuple) and (parent := _find_parent(source, storage)) is not None:
            return parent  # an operator with several views, such as split
    return None


def _get_storage(call: Any) -> object:
    fake = call.meta.get("val") if isinstance(call, torch.fx.Node) else None
    return fake.untyped_storage()._cdata if isinstance(fake, torch.Tensor) and fake.layout is torch.strided else None


def _find_memory_order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Find the order of a tensor's axes in memory: () if it is contiguous, None if its memory has gaps."""
    if is_contiguous_or_false(fake):
        return ()
    order, _ = compute_elementwise_output_logical_to_physical_perm(fake)
    return tuple(order) if is_contiguous_or_false(fake.permute(*order)) else None


def _make_view_graph(views: Sequence[Call], inputs: Sequence[Call]) -> tuple[GraphModule, list[Call]]:
    """Copy view calls to a separate graph; return it with the calls whose results are its inputs.

    Inputs are ``inputs`` and numbers read from other tensors (``item``). Raises ModelError for a view that reads other tensors.
    """
    graph = torch.fx.Graph()
    copies = {call: graph.placeholder(call.name) for call in inputs}
    storages = {_get_storage(call) for call in inputs}

    def is_read_number(call: Call) -> bool:
        reads = [source for source in call.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
        return isinstance(call.meta.get("val"), _NUMBER) and any(source not in copies for source in reads)

    def copy(call: Call) -> Call:
        if call in copies:
            return copies[call]
        if is_read_number(call):
            with graph.inserting_before(first):
                copies[call] = graph.placeholder(call.name)
            return copies[call]
        if call.op != "call_function" or (isinstance(call.meta.get("val"), torch.Tensor) and _get_storage(call) not in storages):
            raise ModelError(f"an output is a part of a tensor that {call.name} chooses, and no engine gives a view")
        copies[call] = graph.node_copy(call, copy)
        return copies[call]

    first = graph.output(())
    with graph.inserting_before(first):
        first.args = ([copy(call) for call in views],)
    return torch.fx.GraphModule({}, graph), [call for call, node in copies.items() if node.op == "placeholder"]


_NUMBER = (torch.SymInt, torch.SymFloat, torch.SymBool)


# ---------------------------------------------------------------------- graphs with constant parameters


MAX_VARIANTS = 64
"""A graph is compiled for at most this many sets of constant tensors; then parameters become inputs."""
Compiled = Callable[[list[Any]], Sequence[Any]]
"""Runs a graph on a list of inputs, which it empties, and returns the outputs in order."""


def find_static_inputs(inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Find parameters, buffers and module attributes among the inputs of a Dynamo graph, by position.

    Dynamo guards neither their identity nor their content, since one graph may serve all modules of a class: see `FrozenGraph`.
    """
    return {
        index: tensor
        for index, tensor in enumerate(inputs)
        if type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and (isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_dynamo_static_input_type", None) is not None)
        and not tensor.is_inference()
    }


class FrozenGraph:
    """Runs a graph compiled with constant parameters; recompiles for other tensors and after a write to one.

    ``compile`` gets these tensors by placeholder index. Writes that PyTorch does not count (NumPy, ``.data``) are not noticed.
    """

    _boxed_call = True
    """Tells AOTAutograd that arguments are passed as one list."""

    def __init__(self, compile: Callable[[Mapping[int, torch.Tensor]], Compiled], tensors: Mapping[int, torch.Tensor]) -> None:  # noqa: A002  # as elsewhere
        self._compile = compile
        self._indices = tuple(tensors)
        self._guard = renew_after_fork(threading.Lock())
        self._pick = itemgetter(*self._indices) if len(tensors) > 1 else lambda args: (args[self._indices[0]],)
        self._variants: tuple[tuple[tuple[torch.Tensor, ...], list[int], Compiled], ...] = ()
        self._compilations = 0
        self._unfrozen: Compiled | None = None
        self._add(tuple(tensors.values()))

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        tensors = self._pick(args)
        versions = _get_versions(tensors)
        # The latest variant is first. No lock: the tuple of variants is only replaced as a whole.
        for frozen, frozen_versions, run in self._variants:
            if frozen_versions == versions and all(map(is_, frozen, tensors)):
                return run(args)
        with self._guard:
            run = self._unfrozen or self._add(tensors)
        return run(args)

    def _add(self, tensors: tuple[torch.Tensor, ...]) -> Compiled:
        """Compile for other constant tensors, or without constants once `MAX_VARIANTS` is reached."""
        if self._compilations == MAX_VARIANTS:
            warn(
                f"the parameters of a frozen graph of torch.compile were replaced or written to {MAX_VARIANTS} times; "
                f"they are inputs from now on; omit freeze=True",
                FallbackWarning,
            )
            # Compiling at each change costs more than constants save.
            self._variants, self._unfrozen = (), self._compile({})
            return self._unfrozen
        self._compilations += 1
        versions = _get_versions(tensors)
        run = self._compile(dict(zip(self._indices, tensors, strict=True)))
        current_variants = (
            v for v in self._variants if not all(map(is_, v[0], tensors))
        )  # variants for older versions are useless
        self._variants = ((tensors, versions, run), *current_variants)
        return run


def _get_versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """PyTorch's counts of writes to the tensors; -1 for inference tensors, which have none."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


# ---------------------------------------------------------------------- engine lists


def check_sizes_closed(settings: ModuleOptions) -> None:
    """Raise OptionError if ``shapes`` is `Buckets`, which are only for models with symbolic dims."""
    if not isinstance(settings.shapes, str):
        raise OptionError(
            "shapes=Buckets(...) is not for a module of PyTorch, which is captured with the sizes of a call; "
            "pass XRTModule(xrt.from_torch(module, args, dynamic_shapes=...), ...)"
        )


def add_torch_engine(engine: Any, function: Function, *, is_strict: bool) -> Any:
    """Append engine ``torch`` if the Function has opaque nodes and no listed engine is ``torch``.

    A strict list, ``"auto"`` and None are unchanged: the default engine supports the whole Function.
    """
    if engine is None:
        return None
    listed = [engine] if isinstance(engine, str) or not isinstance(engine, Sequence) else list(engine)
    engine_names = [entry if isinstance(entry, str) else getattr(entry, "name", "") for entry in listed]
    if is_strict or "auto" in engine_names or any(name.partition("{")[0] == "torch" for name in engine_names):
        return engine
    if all(node.domain != DOMAIN for _, node in function.walk()) or not _is_ready("torch"):
        return engine
    return [*listed, "torch"]


def choose_default_engines() -> list[str]:
    """Choose the default engine of a compiled graph: the first one by rank that can be used."""
    return [next(name for name in list_by_rank() if _is_ready(name))]


def _is_ready(name: str) -> bool:
    """Whether an engine is registered and its library can be used."""
    return name in names() and probe(name).state == "ready"


# ---------------------------------------------------------------------- the backend


def xrt_backend(
    graph: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The backend for ``torch.compile(model, backend="xrt", options={...})``.

    Options are the arguments of `XRTModule` (``engine``, ``cache``, ``threads``, ...) and ``freeze``: True makes parameters and
    buffers constants, which engines fold and pack; a write counted by PyTorch recompiles the graph. The default engine is ONNX
    Runtime if installed. Backward graphs are compiled likewise; in training ``freeze`` keeps parameters that require a gradient
    as inputs. Raises OptionError for an unknown option or a ``mode``.
    """
    arguments = dict(options or {})
    if mode is not None:
        raise OptionError(f"the backend 'xrt' has no modes; got mode={mode!r}. Give options={{'engine': ...}} instead")
    freeze = arguments.pop("freeze", False)
    if not isinstance(freeze, bool):
        raise OptionError(f"freeze must be True or False; got {freeze!r}")
    names = [name for name in arguments if name not in ("engine", "device", "cache")]
    check_sizes_closed(parse_options({name: arguments[name] for name in names}, "the backend 'xrt'", ("freeze",)))
    return compile_graph(graph, inputs, arguments, freeze=freeze)


def compile_graph(
    graph: GraphModule,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    *,
    freeze: bool = False,
    modules: list[XRTModule] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with options of `XRTModule`; append each XRTModule to ``modules``.

    A graph that cannot be lowered, or has an opaque operator that no engine supports, runs in PyTorch with a FallbackWarning.
    """
    from torch._dynamo.backends.common import aot_autograd

    compile_one = partial(_compile, options=options, modules=[] if modules is None else modules)
    static = find_static_inputs(inputs) if freeze else {}

    def compile_forward(forward: GraphModule, fakes: Sequence[Any], *, is_training: bool) -> Compiled:
        context = TracingContext.try_get()
        # Tensors that the graph writes to cannot be constants, nor parameters that an optimizer changes.
        written = context.fw_metadata.mutated_inp_runtime_indices if context and context.fw_metadata else ()
        fixed = {index: t for index, t in static.items() if index not in written and not (is_training and t.requires_grad)}
        compile_for = partial(compile_one, forward)
        # Positions are valid only if AOTAutograd kept all inputs.
        return FrozenGraph(compile_for, fixed) if fixed and len(fakes) == len(inputs) else compile_for({})

    def compile_backward(backward: GraphModule, fakes: Sequence[Any]) -> Compiled:
        return compile_one(backward, {})

    compile_all: Any = aot_autograd(
        fw_compiler=partial(compile_forward, is_training=True),
        bw_compiler=compile_backward,
        inference_compiler=partial(compile_forward, is_training=False),
        decompositions=BEFORE_LOWERING,
    )
    with _disable_onednn_lstm(graph):
        return compile_all(graph, inputs)  # type: ignore[no-any-return]  # untyped there


@contextmanager
def _disable_onednn_lstm(graph: GraphModule) -> Iterator[None]:
    """Disable oneDNN while AOTAutograd traces an LSTM with gradients.

    oneDNN's LSTM saves a workspace tensor that only PyTorch's own gradient can read.
    """
    is_recurrent = any(getattr(call.target, "__name__", "") == "lstm" for call in graph.graph.nodes)
    if not (is_recurrent and torch.is_grad_enabled()):
        yield
        return
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


def _compile(
    graph: GraphModule, fixed: Mapping[int, torch.Tensor], *, options: Mapping[str, Any], modules: list[XRTModule]
) -> Compiled:
    """Compile one graph of AOTAutograd with the tensors in ``fixed`` as constants.

    A graph that cannot be lowered runs in PyTorch, with a FallbackWarning.
    """
    try:
        # The fake tensor mode of AOTAutograd is active here, and constants are real tensors.
        with _disable_current_modes():
            lowered = lower_graph(graph, fixed)
    except ModelError as error:
        warn(f"a graph of torch.compile runs in PyTorch: {error}", FallbackWarning)
        return _box(graph.forward)
    # Only views and inputs are returned: PyTorch does that without a program.
    if not lowered.function.outputs:
        return _box(graph.forward)
    engine = options.get("engine") or choose_default_engines()
    arguments = {**options, "engine": add_torch_engine(engine, lowered.function, is_strict=bool(options.get("strict")))}
    module = XRTModule(lowered.function, **arguments)
    modules.append(module)
    dtypes = [to_torch_dtype(value.type.dtype) for value in lowered.function.inputs if isinstance(value.type, TensorType)]
    inputs = list(zip(lowered.inputs, dtypes, strict=True))
    make_outputs = _choose_outputs(lowered)
    is_declined = False
    is_opaque = any(node.domain == DOMAIN for _, node in lowered.function.walk()) and not options.get("strict")

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
        outputs = make_outputs(results, args)
        # Boxed calling convention: release the inputs early.
        args.clear()
        return outputs

    return _mark_boxed(run)


def _choose_outputs(lowered: LoweredGraph) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Make the function that assembles the outputs of the graph from the results of the module and the graph's arguments."""
    is_single = len(lowered.function.outputs) == 1

    def make_outputs(results: Any, args: list[Any]) -> Sequence[Any]:
        tensors = [_make_tensor(*pair) for pair in zip((results,) if is_single else results, lowered.axes, strict=True)]
        outputs = [leaf.pick(tensors, args) for leaf in lowered.leaves]
        if lowered.views is not None:
            views = lowered.views(*[leaf.pick(tensors, args) for leaf in lowered.bases])
            for index, view in zip(lowered.viewed, views, strict=True):
                outputs[index] = view
        return outputs

    return make_outputs


def _make_array(value: Any, dtype: torch.dtype) -> np.ndarray[Any, Any]:
    """Convert an argument of the graph to an array of an element type; tensors of that type share their memory."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return share_array(value if value.dtype is dtype else value.to(dtype))  # Dynamo passes a float as a tensor of another type


def _make_tensor(array: np.ndarray[Any, Any], axes: tuple[int, ...]) -> torch.Tensor:
    return share_tensor(array).permute(axes) if axes else share_tensor(array)


def _box(function: Callable[..., Any]) -> Compiled:
    return _mark_boxed(lambda args: function(*args))


def _mark_boxed(function: Compiled) -> Compiled:
    function._boxed_call = True  # type: ignore[attr-defined]  # tells AOTAutograd that arguments are passed as one list
    return function
