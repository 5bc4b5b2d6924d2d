"""XRT as a backend of ``torch.compile``: each graph that Dynamo finds becomes a Function and runs as an XRTModule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from xrt.builder import Builder
from xrt.errors import FallbackWarning, ModelError, OptionError, warn
from xrt.frontends.torch.capture import Leaf
from xrt.frontends.torch.dtypes import share_array, share_tensor, to_torch_dtype
from xrt.frontends.torch.engines import add_torch_engine, choose_default_engines
from xrt.frontends.torch.lower import Lowering
from xrt.frontends.torch.symbols import Symbols
from xrt.graph import TensorType
from xrt.module.module import XRTModule
from xrt.module.options import parse_options
from xrt.passes import drop_dead_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from xrt.graph import Function

__all__ = ["compile_graph", "xrt_backend"]

Compiled = Callable[[list[Any]], Sequence[Any]]
"""Takes a list of inputs, which it empties, and returns the outputs in order."""


def xrt_backend(
    graph: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph for ``torch.compile(model, backend="xrt", options={...})``; PyTorch calls this, under the name ``xrt``.

    The options are the arguments of `XRTModule` (``engine``, ``cache``, ``threads``, ...) and ``freeze``: True makes parameters
    constants, which engines pack once; later writes to them are then not seen. Without ``engine`` it is ONNX Runtime where that
    is installed. A backward graph runs in PyTorch itself. Raises OptionError for an unknown option, or for a ``mode``.
    """
    from torch._dynamo.backends.common import aot_autograd

    given = dict(options or {})
    if mode is not None:
        raise OptionError(f"the backend 'xrt' has no modes; got mode={mode!r}. Give options={{'engine': ...}} instead")
    freeze = given.pop("freeze", False)
    if not isinstance(freeze, bool):
        raise OptionError(f"freeze must be True or False; got {freeze!r}")
    parse_options({name: value for name, value in given.items() if name not in ("engine", "device", "cache")})
    fixed = {i: one for i, one in enumerate(inputs) if isinstance(one, torch.nn.Parameter)} if freeze else {}

    def compile_forward(forward: GraphModule, fakes: Sequence[Any]) -> Compiled:
        with _disable_current_modes():
            return _compile(forward, fixed, given)

    def keep(backward: GraphModule, fakes: Sequence[Any]) -> Compiled:
        return _box(backward.forward)

    return aot_autograd(fw_compiler=compile_forward, bw_compiler=keep, inference_compiler=compile_forward)(graph, inputs)  # type: ignore[no-any-return]  # untyped there


def _compile(graph: GraphModule, fixed: Mapping[int, torch.Tensor], options: dict[str, Any]) -> Compiled:
    try:
        function, given, leaves = compile_graph(graph, fixed)
    except ModelError as error:
        warn(f"a graph of torch.compile runs in PyTorch: {error}", FallbackWarning)
        return _box(graph.forward)
    if not any(leaf.kind == "output" for leaf in leaves):
        return _box(graph.forward)
    engine = options.get("engine") or choose_default_engines()
    arguments = {**options, "engine": add_torch_engine(engine, function, is_strict=bool(options.get("strict")))}
    module = XRTModule(function, **arguments)
    is_single = len(function.outputs) == 1
    dtypes = [to_torch_dtype(value.type.dtype) for value in function.inputs if isinstance(value.type, TensorType)]

    def run(args: list[Any]) -> Sequence[Any]:
        arrays = [_make_array(args[i], dtype) for i, dtype in zip(given, dtypes, strict=True)]
        results = module(*arrays)
        if is_single:
            results = (results,)
        found = [_make_output(leaf, results, args) for leaf in leaves]
        args.clear()
        return found

    return _mark_boxed(run)


def _make_array(value: Any, dtype: torch.dtype) -> np.ndarray[Any, Any]:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return share_array(value if value.dtype is dtype else value.to(dtype))  # Dynamo passes a float as a tensor of another type


def _make_output(leaf: Leaf, results: Sequence[Any], args: list[Any]) -> Any:
    if leaf.kind == "output":
        return results[leaf.index].item() if leaf.is_number else share_tensor(results[leaf.index])
    return args[leaf.index] if leaf.kind == "input" else leaf.value


def _box(function: Callable[..., Any]) -> Compiled:
    return _mark_boxed(lambda args: function(*args))


def _mark_boxed(function: Compiled) -> Compiled:
    function._boxed_call = True  # type: ignore[attr-defined]  # by this AOT knows that it takes a list
    return function


def compile_graph(graph: GraphModule, fixed: Mapping[int, torch.Tensor]) -> tuple[Function, list[int], list[Leaf]]:
    """Return a graph of AOTAutograd as a Function, which placeholders its inputs are, and how its outputs are made of its own.

    ``fixed`` has tensors, by the placeholder, that become constants. Raises ModelError where it cannot be lowered.
    """
    builder = Builder("graph")
    lowering = Lowering(builder, Symbols({}))
    placeholders = [call for call in graph.graph.nodes if call.op == "placeholder"]
    given: list[int] = []
    with builder:
        for index, call in enumerate(placeholders):
            fake = call.meta.get("val")
            if index in fixed and isinstance(fake, torch.Tensor) and fake.shape == fixed[index].shape:
                lowering.values[call] = lowering.add_constant(call.name, fixed[index])
            elif isinstance(fake, torch.Tensor):
                lowering.values[call] = lowering.add_input(call.name, fake)
                given.append(index)
        for index, call in enumerate(placeholders):
            fake = call.meta.get("val")
            if isinstance(fake, torch.SymInt | torch.SymFloat):
                if not fake.node.expr.is_number and fake.node.expr not in lowering.symbols.sources:
                    lowering.add_input(call.name, fake)
                    given.append(index)
                lowering.values[call] = lowering.symbols.number(fake)
            elif not isinstance(fake, torch.Tensor):
                lowering.values[call] = fake
        outputs = lowering.run(graph.graph, graph)
        leaves = _add_outputs(lowering, graph, placeholders, outputs)
    return drop_dead_nodes(builder.function()), given, leaves


def _add_outputs(lowering: Lowering, graph: GraphModule, placeholders: list[Any], values: Any) -> list[Leaf]:
    """Add each value once; what is an input, a number or None is made without the Function."""
    (output,) = [call for call in graph.graph.nodes if call.op == "output"]
    leaves: list[Leaf] = []
    seen: dict[str, int] = {}
    for call, value in zip(output.args[0], values, strict=True):
        if call in placeholders:
            leaves.append(Leaf("input", placeholders.index(call)))
            continue
        if value is None or isinstance(value, bool | int | float):
            leaves.append(Leaf("value", value=value))
            continue
        is_number = not isinstance(call.meta.get("val"), torch.Tensor)
        tensor = value.scalar if is_number else value
        if tensor.name not in seen:
            seen[tensor.name] = len(lowering.builder.outputs)
            lowering.builder.output(tensor, f"output_{len(seen)}")
        leaves.append(Leaf("output", seen[tensor.name], is_number=is_number))
    return leaves
