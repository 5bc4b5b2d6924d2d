"""XRT as a backend of ``torch.compile``: each graph that Dynamo finds becomes a Function and runs as an XRTModule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes

from xrt.errors import FallbackWarning, ModelError, OptionError, PlanError, warn
from xrt.frontends.torch.decompositions import get_decompositions
from xrt.frontends.torch.dtypes import share_array, share_tensor, to_torch_dtype
from xrt.frontends.torch.engines import add_torch_engine, check_sizes_closed, choose_default_engines
from xrt.frontends.torch.frozen import FrozenGraph, find_static_inputs
from xrt.frontends.torch.lower_graph import lower_graph
from xrt.graph import TensorType
from xrt.graph.opaque_call import DOMAIN
from xrt.module.module import XRTModule
from xrt.module.options import parse_options

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from xrt.frontends.torch.capture import Leaf
    from xrt.frontends.torch.lower_graph import LoweredGraph

__all__ = ["compile_graph", "xrt_backend"]

Compiled = Callable[[list[Any]], Sequence[Any]]
"""Takes a list of inputs, which it empties, and returns the outputs in order."""


def xrt_backend(
    graph: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph for ``torch.compile(model, backend="xrt", options={...})``; PyTorch calls this, under the name ``xrt``.

    The options are the arguments of `XRTModule` (``engine``, ``cache``, ``threads``, ...) and ``freeze``: True makes parameters
    and buffers constants, which engines fold and pack; a write that PyTorch counts compiles the graph again. Without ``engine``
    it is ONNX Runtime where that is installed. A backward graph is compiled as the forward graph is; in training ``freeze``
    leaves parameters that require a gradient as inputs. Raises OptionError for an unknown option, or for a ``mode``.
    """
    given = dict(options or {})
    if mode is not None:
        raise OptionError(f"the backend 'xrt' has no modes; got mode={mode!r}. Give options={{'engine': ...}} instead")
    freeze = given.pop("freeze", False)
    if not isinstance(freeze, bool):
        raise OptionError(f"freeze must be True or False; got {freeze!r}")
    check_sizes_closed(parse_options({name: value for name, value in given.items() if name not in ("engine", "device", "cache")}))
    return compile_graph(graph, inputs, given, freeze=freeze)


def compile_graph(
    graph: GraphModule,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    *,
    freeze: bool = False,
    modules: list[XRTModule] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo for such inputs, by arguments of `XRTModule`; each XRTModule made is appended to ``modules``.

    A graph that cannot be lowered, or has an operator without an ONNX form that no engine supports, runs in PyTorch, with a
    FallbackWarning.
    """
    from torch._dynamo.backends.common import aot_autograd

    compile_one = partial(_compile, options=options, modules=[] if modules is None else modules)
    static = find_static_inputs(inputs) if freeze else {}

    def compile_forward(forward: GraphModule, fakes: Sequence[Any], *, is_training: bool) -> Compiled:
        context = TracingContext.try_get()
        written = context.fw_metadata.mutated_inp_runtime_indices if context and context.fw_metadata else ()
        fixed = {index: one for index, one in static.items() if index not in written and not (is_training and one.requires_grad)}
        compile_for = partial(compile_one, forward)
        return FrozenGraph(compile_for, fixed) if fixed and len(fakes) == len(inputs) else compile_for({})

    def compile_backward(backward: GraphModule, fakes: Sequence[Any]) -> Compiled:
        return compile_one(backward, {})

    compile_all: Any = aot_autograd(
        fw_compiler=partial(compile_forward, is_training=True),
        bw_compiler=compile_backward,
        inference_compiler=partial(compile_forward, is_training=False),
        decompositions=get_decompositions(),
    )
    with _write_out_recurrence(graph):
        return compile_all(graph, inputs)  # type: ignore[no-any-return]  # untyped there


@contextmanager
def _write_out_recurrence(graph: GraphModule) -> Iterator[None]:
    """Have AOTAutograd write an LSTM in products where gradients are wanted.

    Its other form is an operator of oneDNN, which keeps a tensor that only PyTorch's own gradient reads.
    """
    is_recurrent = any(getattr(call.target, "__name__", "") == "lstm" for call in graph.graph.nodes)
    if not (is_recurrent and torch.is_grad_enabled()):
        yield
        return
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _compile(
    graph: GraphModule, fixed: Mapping[int, torch.Tensor], *, options: Mapping[str, Any], modules: list[XRTModule]
) -> Compiled:
    try:
        with _disable_current_modes():
            found = lower_graph(graph, fixed)
    except ModelError as error:
        warn(f"a graph of torch.compile runs in PyTorch: {error}", FallbackWarning)
        return _box(graph.forward)
    if not found.function.outputs:
        return _box(graph.forward)
    engine = options.get("engine") or choose_default_engines()
    arguments = {**options, "engine": add_torch_engine(engine, found.function, is_strict=bool(options.get("strict")))}
    module = XRTModule(found.function, **arguments)
    modules.append(module)
    dtypes = [to_torch_dtype(value.type.dtype) for value in found.function.inputs if isinstance(value.type, TensorType)]
    given = list(zip(found.inputs, dtypes, strict=True))
    make_outputs = _choose_outputs(found)
    is_declined = False

    is_opaque = any(node.domain == DOMAIN for _, node in found.function.walk()) and not options.get("strict")

    def run(args: list[Any]) -> Sequence[Any]:
        nonlocal is_declined
        if is_declined:
            return graph.forward(*args)  # type: ignore[no-any-return]  # untyped there
        try:
            results = module(*[_make_array(args[index], dtype) for index, dtype in given])
        except PlanError as error:
            if not is_opaque:
                raise
            is_declined = True
            warn(f"a graph of torch.compile runs in PyTorch: {error}", FallbackWarning)
            return graph.forward(*args)  # type: ignore[no-any-return]  # untyped there
        outputs = make_outputs(results, args)
        args.clear()
        return outputs

    return _mark_boxed(run)


def _choose_outputs(found: LoweredGraph) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Return a function of the module's results and the graph's arguments that makes the graph's outputs."""
    is_single = len(found.function.outputs) == 1
    is_plain = found.views is None and not any(found.axes)
    if is_plain and all(leaf.kind == "output" and not leaf.is_number for leaf in found.leaves):
        if is_single and len(found.leaves) == 1:
            return lambda result, args: [share_tensor(result)]
        if [leaf.index for leaf in found.leaves] == list(range(len(found.function.outputs))):
            return lambda results, args: [share_tensor(result) for result in results]

    def make_outputs(results: Any, args: list[Any]) -> Sequence[Any]:
        tensors = [_make_tensor(*one) for one in zip((results,) if is_single else results, found.axes, strict=True)]
        outputs = [_make_output(leaf, tensors, args) for leaf in found.leaves]
        if found.views is not None:
            views = found.views(*[_make_output(leaf, tensors, args) for leaf in found.bases])
            for index, view in zip(found.viewed, views, strict=True):
                outputs[index] = view
        return outputs

    return make_outputs


def _make_array(value: Any, dtype: torch.dtype) -> np.ndarray[Any, Any]:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return share_array(value if value.dtype is dtype else value.to(dtype))  # Dynamo passes a float as a tensor of another type


def _make_tensor(array: np.ndarray[Any, Any], axes: tuple[int, ...]) -> torch.Tensor:
    return share_tensor(array).permute(axes) if axes else share_tensor(array)


def _make_output(leaf: Leaf, tensors: Sequence[torch.Tensor], args: list[Any]) -> Any:
    if leaf.kind == "output":
        return tensors[leaf.index].item() if leaf.is_number else tensors[leaf.index]
    return args[leaf.index] if leaf.kind == "input" else leaf.value


def _box(function: Callable[..., Any]) -> Compiled:
    return _mark_boxed(lambda args: function(*args))


def _mark_boxed(function: Compiled) -> Compiled:
    function._boxed_call = True  # type: ignore[attr-defined]  # by this AOT knows that it takes a list
    return function
