"""Lower a captured FX graph: each call becomes nodes by its rule, by a decomposition, or else one opaque node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._decomp.decompositions import max_unpool2d
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import suggest_memory_format
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional
from torch.utils import _pytree as pytree

from xrt.builder import Builder, Tensor
from xrt.builder.record_op import Symbol, apply, current, emit
from xrt.errors import InputError, ModelError
from xrt.frontends.torch.dtypes import from_torch_dtype, share_array
from xrt.frontends.torch.rules import RULES, Unsupported
from xrt.frontends.torch.rules.table import as_tensor, bind_arguments
from xrt.frontends.torch.symbols import SymbolicNumber, Symbols
from xrt.graph import DType, TensorType, read_attributes
from xrt.graph.constants import Constant
from xrt.graph.node import DOMAIN, OpaqueCall, Tagged
from xrt.graph.schemas import may_equal

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node as Call

    from xrt.graph import Type


# ---------------------------------------------------------------------- checks, and calls without an ONNX form


CHECKS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten._assert_async.msg",
        "aten._assert_async.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._functional_assert_scalar.default",
        "aten._functional_assert_async.msg",
        "aten._functional_sym_constrain_range_for_size.default",
        "aten._linalg_check_errors.default",
    }
)
"""Operators that only check values. The lowering drops them."""


def record_opaque(
    operator: str, args: Sequence[Any], kwargs: dict[str, Any], types: Sequence[Type | None], reason: str
) -> tuple[Tensor | None, ...]:
    """Record a call as an opaque node, which PyTorch runs. Return one result per type; None where the type is None."""
    builder = current(operator)
    inputs: list[Symbol] = []
    call = OpaqueCall(
        operator, tuple(_encode(arg, inputs) for arg in args), {k: _encode(v, inputs) for k, v in kwargs.items()}, reason
    )
    builder.import_domain(DOMAIN, 1)
    labels = [str(index + 1) for index in range(len(types))]
    node = builder.new_node(call.op_type, inputs, len(types), read_attributes(call.attributes), domain=DOMAIN, labels=labels)
    # An empty name omits an output: PyTorch computes it, and nobody reads it.
    node = replace(node, outputs=tuple(n if t is not None else "" for n, t in zip(node.outputs, types, strict=True)))
    results = builder.record(node, types)
    return tuple(result if result.name else None for result in results)


def _encode(value: Any, inputs: list[Symbol]) -> Any:
    """Encode an argument of an opaque call. Append tensors and symbolic numbers to ``inputs``, and encode their indices."""
    if isinstance(value, Symbol):
        inputs.append(value)
        return Tagged("tensor", len(inputs) - 1)
    if isinstance(value, SymbolicNumber):
        inputs.append(value.scalar)
        return Tagged("number", len(inputs) - 1)
    if isinstance(value, list | tuple):
        return [_encode(item, inputs) for item in value]
    for kind, class_ in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
        if isinstance(value, class_):
            return Tagged(kind, str(value).removeprefix("torch."))
    return Tagged("device", str(value)) if isinstance(value, torch.device) else value


# ---------------------------------------------------------------------- control flow


def lower_control_flow(lowering: Lowering, name: str, args: list[Any], fakes: Any) -> list[Any]:
    """Lower a higher-order operator and return its results.

    ``fakes`` are the fake tensors that the capture stored as results. Raises ModelError for an unsupported operator.
    """
    rule = _RULES.get(name)
    if rule is None:
        raise ModelError(f"the module uses the higher-order operator {name}, which has no ONNX form; run it without XRT")
    results = rule(lowering, *args)
    if rule is _inline or not isinstance(fakes, list | tuple):
        return results  # type: ignore[no-any-return]  # an inlined graph returns its results unchanged
    return [lowering.record_result(result, fake) for result, fake in zip(results, fakes, strict=False)]


def _inline(lowering: Lowering, *args: Any) -> Any:
    """Inline the subgraph of a higher-order operator that only wraps it, such as `wrap_with_autocast`."""
    # Wrappers differ in the options before the subgraph; the operands follow it.
    index = next(i for i, arg in enumerate(args) if isinstance(arg, torch.fx.GraphModule))
    part, operands = args[index], list(args[index + 1 :])
    count = sum(call.op == "placeholder" for call in part.graph.nodes)
    if len(operands) > count:
        operands = [operand for operand in operands if not isinstance(operand, str)]  # the name of the subgraph
    if len(operands) == 1 and isinstance(operands[0], list) and count != 1:
        operands = operands[0]
    return lowering.inline(part, operands)


def _cond(lowering: Lowering, condition: Any, then: GraphModule, other: GraphModule, operands: Any) -> Sequence[Any]:
    if isinstance(condition, bool):
        return lowering.inline(then if condition else other, operands)  # type: ignore[no-any-return]  # a list
    bodies = {"then_branch": _make_body(lowering, then, operands), "else_branch": _make_body(lowering, other, operands)}
    return _insert_nones(apply("If", [_as_condition(condition)], bodies), then)


def _while_loop(lowering: Lowering, condition: GraphModule, body: GraphModule, carried: Any, others: Any) -> Sequence[Any]:
    """Lower torch.while_loop to a Loop without a trip count; ``others`` are values that both subgraphs capture."""
    lowering.read_constants(condition, body)
    carried = [as_tensor(value) for value in carried]

    def evaluate_condition(states: Sequence[Any]) -> Tensor:
        (result,) = _as_sequence(lowering.inline(condition, [*states, *others]))
        return _as_condition(result)

    def run(_iteration: Tensor, _condition: Tensor, *states: Tensor) -> list[Tensor]:
        with lowering.enter():
            results = [as_tensor(value) for value in lowering.inline(body, [*states, *others])]
            return [evaluate_condition(results), *results]

    # ONNX's Loop reads a condition before the first iteration, so it is evaluated outside, too.
    return _as_sequence(apply("Loop", [None, evaluate_condition(carried), *carried], {"body": run}))


def _scan(lowering: Lowering, body: GraphModule, states: Any, rows: Any, others: Any) -> Sequence[Any]:
    """Lower torch.scan to a Scan over axis 0 of ``rows`` from initial ``states``; the body captures the values ``others``."""
    inputs = [as_tensor(value) for value in (*states, *rows)]
    attributes = {"body": _make_body(lowering, body, others), "num_scan_inputs": len(rows)}
    return _insert_nones(apply("Scan", inputs, attributes), body)


def _with_effects(_: Lowering, token: Any, operator: Any, *__: Any) -> Sequence[Any]:
    """Drop an operator with an effect token if it only checks values; raises ModelError for others. The new token is None."""
    if str(operator) not in CHECKS:
        raise ModelError(f"the module calls {operator}, whose effects no Function has; run it without XRT")
    return [None]


_WRAPPERS = (
    *("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap_activation_checkpoint", "tag_activation_checkpoint"),
    *("hints_wrapper", "invoke_subgraph", "strict_mode", "wrap"),
)
_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_WRAPPERS, _inline),
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": lambda lowering, body, rows, others: _scan(lowering, body, [], rows, others),
    "with_effects": _with_effects,
}


def _make_body(lowering: Lowering, part: GraphModule, others: Sequence[Any]) -> Callable[..., list[Tensor]]:
    """Make the function that traces a body: it inlines the subgraph on the body's inputs and the captured values ``others``."""
    lowering.read_constants(part)

    def run(*operands: Tensor) -> list[Tensor]:
        with lowering.enter():
            return [as_tensor(result) for result in lowering.inline(part, [*operands, *others]) if result is not None]

    return run


def _insert_nones(results: Any, part: GraphModule) -> list[Any]:
    """Restore the None results of a subgraph, for which its body has no outputs: insert None at their indices."""
    (output,) = [call for call in part.graph.nodes if call.op == "output"]
    values = iter(_as_sequence(results))
    return [None if call is None else next(values) for call in output.args[0]]


def _as_sequence(results: Any) -> Sequence[Any]:
    return results if isinstance(results, list | tuple) else (results,)


def _as_condition(value: Any) -> Tensor:
    """Convert a number or a tensor of one element to a 0-d bool tensor."""
    tensor = as_tensor(value)
    if tensor.dtype is not DType.BOOL:
        tensor = emit("Cast", tensor, to=DType.BOOL)
    return tensor if tensor.shape == () else emit("Squeeze", tensor)


# ---------------------------------------------------------------------- decompositions
#
# Operators without a lowering rule are traced call by call through a decomposition. Most are PyTorch's; a few are XRT's, for
# operators that PyTorch does not decompose.


def trace_decomposition(call: Call, read: Sequence[int]) -> GraphModule | None:
    """Trace the decomposition of a captured call; the nodes among its arguments become the inputs of the traced graph.

    ``read`` has the indices of the results to compute. Return None if there is no decomposition that can be lowered.
    """
    decompose = _find_decomposition(call.target)
    leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
    node_indices = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]
    fakes = [leaves[index].meta.get("val") for index in node_indices]
    tensors = [*fakes, *pytree.tree_leaves(call.meta.get("val"))]
    mode = next((fake.fake_mode for fake in tensors if isinstance(fake, torch._subclasses.FakeTensor)), None)
    if decompose is None or mode is None:
        return None

    def run(*values: Any) -> Any:
        arguments = list(leaves)
        for index, value in zip(node_indices, values, strict=True):
            arguments[index] = value
        args, kwargs = pytree.tree_unflatten(arguments, structure)
        results = call.target(*args, **kwargs)
        if not isinstance(results, list | tuple):
            return results
        return [result if index in read else None for index, result in enumerate(results)]

    # Functionalization costs time, and only some decompositions of PyTorch's C++ code need it.
    for function in (run, dispatch_functionalize(run, FunctionalTensorMode())):
        try:
            with mode, enable_python_dispatcher(), torch.no_grad(), torch._C._DisableAutocast():
                part = make_fx(function, {call.target: decompose})(*fakes)
        except Exception:  # noqa: BLE001  # a decomposition may fail for these arguments; the call stays as it is
            continue
        part.graph.eliminate_dead_code()
        called = {node.target for node in part.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
        if not any(target is call.target or _is_unsupported(target) for target in called):
            return part
    return None


def _is_unsupported(operator: Any) -> bool:
    """Whether no rule can lower the operator: a primitive of PyTorch, an update in place, or a read by strides."""
    return operator.namespace == "prims" or operator._schema.is_mutable or operator is torch.ops.aten.as_strided.default


@cache
def _list_decompositions() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    return {
        **decomposition_table,
        **core_aten_decompositions(),
        aten._transformer_encoder_layer_fwd.default: _decompose_encoder_layer,
    }


_SPECIAL_DROPOUTS = frozenset(
    {"aten.alpha_dropout.default", "aten.feature_dropout.default", "aten.feature_alpha_dropout.default"}
)
"""The only random operators that are decomposed: they become arithmetic and one random draw, for which there is a rule."""


def _find_decomposition(operator: Any) -> Callable[..., Any] | None:
    if str(operator) in _SPECIAL_DROPOUTS:
        return operator.decompose  # type: ignore[no-any-return]  # untyped there
    # PyTorch tags recurrent layers as random because of their dropout. Its decomposition would unroll them over time.
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return None
    decomposition = _list_decompositions().get(operator)
    return operator.decompose if decomposition is None and operator._can_decompose() else decomposition


def _decompose_max_unpool2d(x: torch.Tensor, indices: torch.Tensor, output_size: Any) -> torch.Tensor:
    return max_unpool2d(x, indices, output_size).contiguous(memory_format=suggest_memory_format(x))


BEFORE_LOWERING = {torch.ops.aten.max_unpool2d.default: _decompose_max_unpool2d}
"""Decompositions for AOTAutograd to apply: PyTorch's fake kernels of these operators lose the memory format of the result."""


def _decompose_encoder_layer(*args: Any, **kwargs: Any) -> Any:
    """Decompose the fused inference form of `nn.TransformerEncoderLayer`; NotImplemented with a mask or a nested tensor."""
    a = bind_arguments(torch.ops.aten._transformer_encoder_layer_fwd.default, args, kwargs)
    if a.mask is not None or a.src.is_nested:
        return NotImplemented

    def attend(x: torch.Tensor) -> torch.Tensor:
        packed = functional.linear(x, a.qkv_weight, a.qkv_bias).unflatten(-1, (3, a.num_heads, -1))
        attended = functional.scaled_dot_product_attention(*packed.permute(2, 0, 3, 1, 4).unbind(0))
        return functional.linear(attended.transpose(1, 2).flatten(2), a.proj_weight, a.proj_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, a.ffn_weight_1, a.ffn_bias_1)
        return functional.linear((functional.gelu if a.use_gelu else functional.relu)(inner), a.ffn_weight_2, a.ffn_bias_2)

    def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (a.embed_dim,), weight, bias, a.eps)

    if a.norm_first:
        x = a.src + attend(normalize(a.src, a.norm_weight_1, a.norm_bias_1))
        return x + feed(normalize(x, a.norm_weight_2, a.norm_bias_2))
    x = normalize(a.src + attend(a.src), a.norm_weight_1, a.norm_bias_1)
    return normalize(x + feed(x), a.norm_weight_2, a.norm_bias_2)


# ---------------------------------------------------------------------- lowering


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBERS = {torch.SymInt: DType.INT64, torch.SymFloat: DType.FLOAT64, torch.SymBool: DType.BOOL}


class Lowering:
    """Lowers a captured graph into the active builder.

    ``declined`` maps each operator that became an opaque node to the reason. If ``uses_torch_generator``, random operators become
    opaque nodes too, so that they draw from PyTorch's generator.
    """

    def __init__(self, builder: Builder, symbols: Symbols, *, uses_torch_generator: bool = False) -> None:
        self._uses_torch_generator = uses_torch_generator
        self.builder = builder
        self.symbols = symbols
        self.values: dict[Call, Any] = {}
        self.declined: dict[Any, str] = {}
        self._root = builder
        self._constants: dict[object, Tensor] = {}
        self._decomposing: list[Any] = []
        """Operators whose decompositions are being lowered, outermost first."""
        self._parts: dict[object, GraphModule | None] = {}
        """Traced decompositions, by operator and arguments: the layers of a model repeat them."""

    # ------------------------------------------------------------------ inputs and constants

    def add_input(self, name: str, fake: Any) -> Tensor:
        """Add an input with the type of ``fake``, a captured fake tensor or symbolic number."""
        if not isinstance(fake, torch.Tensor):
            tensor = self.builder.input(name, TensorType(_NUMBERS[type(fake)], ()))
            self.symbols.record_value(fake.node.expr, tensor)
            return tensor
        tensor = self.builder.input(name, self.get_type(fake))
        self.symbols.record_shape(tensor, fake.shape)
        return tensor

    def add_constant(self, name: str, tensor: torch.Tensor) -> Tensor:
        """Add a tensor as a constant that shares its memory. Tensors of equal address, shape and strides share a constant."""
        # Empty tensors have no distinct address.
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.numel() else name
        if key not in self._constants:
            free = self._root.names.take(name)
            constant = Constant(share_array(tensor))
            self._root.constants[free] = constant
            self._constants[key] = Tensor(self._root, free, constant.type)
        return self._constants[key]

    def get_type(self, fake: torch.Tensor) -> TensorType:
        """Convert a fake tensor to its TensorType; raises ModelError if it is not dense."""
        if fake.layout is not torch.strided:
            raise ModelError(f"the module computes with a tensor of layout {fake.layout}; only dense tensors are lowered")
        return TensorType(from_torch_dtype(fake.dtype), self.symbols.name_shape(fake.shape))

    # ------------------------------------------------------------------ calls and arguments

    def run(self, graph: Graph, owner: GraphModule) -> Any:
        """Lower all calls of a graph and return its outputs. `values` must already have its placeholders."""
        for call in graph.nodes:
            if call.op == "output":
                return self.argument(call.args[0])
            if call.op == "get_attr":
                self.values[call] = self._read_attribute(call, owner)
            elif call.op == "call_function":
                self.values[call] = self._lower_call(call)
            elif call.op != "placeholder":
                raise ModelError(f"the captured graph has a {call.op} of {call.target}; only calls of operators are lowered")
        return None

    def argument(self, value: Any) -> Any:
        """Replace the FX nodes in an argument by their lowered values, and constant symbolic numbers by Python numbers."""
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self.argument(item) for item in value]
        if isinstance(value, dict):
            return {key: self.argument(item) for key, item in value.items()}
        return self.symbols.number(value) if isinstance(value, _SYMBOLIC) else value

    def _read_attribute(self, call: Call, owner: GraphModule) -> Any:
        value: Any = owner
        for part in str(call.target).split("."):
            value = getattr(value, part)
        return self.add_constant(str(call.target), value) if isinstance(value, torch.Tensor) else value

    def _lower_call(self, call: Call) -> Any:
        """Lower one call; the result is a tensor, a number, None, or a list of these."""
        fake = call.meta.get("val")
        name = str(call.target)
        if isinstance(fake, _SYMBOLIC):
            return self._lower_number(call, fake, name)
        if name in CHECKS:
            return None
        args, kwargs = self.argument(call.args), self.argument(call.kwargs)
        with self.builder.scope(path) if (path := _find_path(call)) else nullcontext():
            if isinstance(call.target, torch._ops.OpOverload):
                return self._lower_operator(call, name, args, kwargs, fake)
            return self._lower_other(call, args, fake)

    def _lower_number(self, call: Call, fake: Any, name: str) -> Any:
        """Lower a call that returns a symbolic number. If `item` reads it from a tensor, record the tensor as its value."""
        if name in ("aten.item.default", "aten._local_scalar_dense.default") and not fake.node.expr.is_number:
            scalar = emit("Reshape", self.argument(call.args[0]), _SCALAR_SHAPE)
            dtype = _NUMBERS[type(fake)]
            self.symbols.record_value(fake.node.expr, scalar if scalar.dtype is dtype else emit("Cast", scalar, to=dtype))
        return self.symbols.number(fake)

    def _lower_other(self, call: Call, args: Any, fake: Any) -> Any:
        """Lower a call of a Python function or a higher-order operator."""
        name = getattr(call.target, "__name__", str(call.target))
        if isinstance(call.target, torch._ops.OperatorBase):
            return lower_control_flow(self, name, args, fake)
        if name in _PYTHON:
            return call.target(*args)
        if isinstance(fake, torch.Tensor):
            raise ModelError(f"the module uses {name}, which is no operator of PyTorch; run it without XRT")
        return fake

    # ------------------------------------------------------------------ graphs inside the graph

    def inline(self, part: GraphModule, args: Sequence[Any]) -> Any:
        """Lower a subgraph with ``args`` as its inputs, and return its outputs."""
        placeholders = [call for call in part.graph.nodes if call.op == "placeholder"]
        for call, value in zip(placeholders, args, strict=True):
            self.values[call] = self.record_result(value, call.meta.get("val")) if isinstance(value, Tensor) else value
        return self.run(part.graph, part)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Context manager: record into the body that is being traced, not into the enclosing graph."""
        before, self.builder = self.builder, current("a body")
        try:
            with self.symbols.enter():
                yield
        finally:
            self.builder = before

    def read_constants(self, *parts: GraphModule) -> None:
        """Add the tensors that subgraphs read as constants of the root graph, before a body that reads them is traced."""
        for part in parts:
            for call in part.graph.nodes:
                if call.op == "get_attr":
                    self._read_attribute(call, part)

    def record_result(self, value: Any, fake: Any) -> Any:
        """Record the symbolic sizes that a result defines: those in a tensor's shape, or the number itself. Return the result."""
        if isinstance(fake, _SYMBOLIC):
            if isinstance(value, Tensor) and not fake.node.expr.is_number:
                self.symbols.record_value(fake.node.expr, value)
            return self.symbols.number(fake)
        if isinstance(fake, torch.Tensor) and value is not None:
            self.symbols.record_shape(value, fake.shape)
        return value

    # ------------------------------------------------------------------ one operator

    def _lower_operator(self, call: Call, name: str, args: Any, kwargs: Any, fake: Any) -> Any:
        """Lower a call by its rule, else by its decomposition, else as an opaque node."""
        rule = RULES.get(name)
        # Before the rules: an opaque node would be wrong, too, since engines pass it contiguous arrays.
        _check_memory(call)
        if name in _SAME_DTYPE:
            self._check_one_type(name, args)
        try:
            if rule is None:
                raise Unsupported("the operator has no ONNX form here")
            if self._uses_torch_generator and name in _RANDOM_RULES:
                raise Unsupported("the operator draws from PyTorch's generator")
            _check_not_complex(fake, call)
            return self._add_types(rule(self._get_types(call, fake), *args, **kwargs), fake)
        except (Unsupported, ModelError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  # an unexpected call must not fail the model
            reason = f"its rule fails for these arguments ({type(error).__name__}: {error})"
        if (results := self._decompose(call, fake)) is not None:
            return results
        # Keep the first reason per operator.
        self.declined.setdefault(call.target, reason)
        return self._record_opaque(call, args, kwargs, fake, reason)

    def _decompose(self, call: Call, fake: Any) -> Any:
        """Lower a call by its decomposition; None if there is none, or if a part of it cannot be lowered."""
        # A decomposition may call the operator that it decomposes with other arguments.
        if call.target in self._decomposing:
            return None
        leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
        read = _list_read_results(call, fake)
        key = (call.target, structure, read, *map(_describe, leaves))
        part = self._parts[key] if key in self._parts else trace_decomposition(call, read)
        # An unbacked symbol stands for the value of this one call, so that a trace with one cannot be shared.
        if part is None or not any(free_unbacked_symbols(node.meta.get("val")) for node in part.graph.nodes):
            self._parts[key] = part
        if part is None:
            return None
        self._decomposing.append(call.target)
        try:
            return self._add_types(self.inline(part, [self.values[n] for n in leaves if isinstance(n, torch.fx.Node)]), fake)
        except (Unsupported, ModelError):
            return None
        finally:
            self._decomposing.pop()

    def _check_one_type(self, name: str, args: Any) -> None:
        """Raise InputError if the operands have different element types, which fails at run time but not in torch.export."""
        operands = [operand for operand in args if isinstance(operand, Tensor)]
        other = next((operand for operand in operands if operand.dtype is not operands[-1].dtype), None)
        if other is None:
            return
        source = next((value for value in self._root.inputs if value.type and value.dtype is other.dtype), other)
        second = next(operand for operand in operands if operand.dtype is not other.dtype)
        raise InputError(
            f"input {source.name!r} is {other.dtype}, and {second.name!r} is {second.dtype}: {name.split('.')[1]} of "
            f"PyTorch takes one element type; convert the input, or the module"
        )

    def _record_opaque(self, call: Call, args: Any, kwargs: Any, fake: Any, reason: str) -> Any:
        """Record a call as an opaque node with the captured types; raises ModelError if the operator writes to its inputs."""
        schema = call.target._schema
        if schema.is_mutable:
            raise ModelError(f"operator {schema.name} writes to its inputs and could not be made functional: {reason}")
        overload = call.target._overloadname or "default"
        several = isinstance(fake, list | tuple)
        result_types = self._get_types(call, fake)
        types: list[Type | None] = list(result_types) if several else [result_types]
        results = record_opaque(f"{schema.name}.{overload}", args, kwargs, types, reason)
        for tensor, captured in zip(results, fake if several else [fake], strict=True):
            if tensor is not None:
                self.symbols.record_shape(tensor, captured.shape)
        return list(results) if several else results[0]

    def _get_types(self, call: Call, fake: Any) -> Any:
        """The type of the result, or None if it is not a tensor. For several results: a tuple, with None for unused ones."""
        if not isinstance(fake, list | tuple):
            return self.get_type(fake) if isinstance(fake, torch.Tensor) else None
        read = _list_read_results(call, fake)
        return tuple(
            self.get_type(item) if isinstance(item, torch.Tensor) and index in read else None for index, item in enumerate(fake)
        )

    def _add_types(self, result: Any, fake: Any) -> Any:
        """Give a rule's results the captured types, with a Cast if needed; raises Unsupported if shapes contradict PyTorch's."""
        if isinstance(fake, list | tuple):
            return [self._add_types(item, captured) for item, captured in zip(result, fake, strict=True)]
        if not isinstance(fake, torch.Tensor) or result is None:
            return result
        captured_type = self.get_type(fake)
        if result.dtype is not captured_type.dtype:
            result = emit("Cast", result, to=captured_type.dtype)
        shape = result.tensor_type.shape
        if shape is not None and not may_equal(TensorType(captured_type.dtype, shape), captured_type):
            raise Unsupported(f"its rule gives {TensorType(captured_type.dtype, shape)}, and PyTorch {captured_type}")
        # The capture knows extents that inference does not.
        if (shape is None or None in shape) and self.builder.find_constant(result) is None:
            result.type = self.builder.types[result.name] = captured_type
        self.symbols.record_shape(result, fake.shape)
        return result


_SAME_DTYPE = frozenset(
    f"aten.{name}.default"
    for name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d", "convolution")
)
"""Operators that torch.export captures with mixed element types although they fail at run time."""
_RANDOM_RULES = frozenset({"aten.native_dropout.default", "aten.bernoulli.p"})
"""Random operators that have a rule."""
_SCALAR_SHAPE = np.zeros(0, np.int64)
_PYTHON = frozenset({"getitem"})
"""Python functions that are called on lowered values. Others compute numbers that the capture already knows."""


def _list_read_results(call: Call, fake: Any) -> tuple[int, ...]:
    """List the indices of the results that other calls read; empty for a call with a single result."""
    if not isinstance(fake, list | tuple):
        return ()
    if any(getattr(user.target, "__name__", "") != "getitem" for user in call.users):
        return tuple(range(len(fake)))
    return tuple(sorted({user.args[1] for user in call.users if user.users}))


def _describe(leaf: Any) -> object:
    """Dict key of an argument: the properties that its decomposition depends on."""
    fake = leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else None
    if isinstance(fake, torch.Tensor):
        return fake.dtype, str(tuple(fake.shape))
    return type(leaf), str(leaf if fake is None else fake)


def _check_not_complex(fake: Any, call: Call) -> None:
    """Raise Unsupported for complex inputs or results."""
    read = [node.meta.get("val") for node in call.all_input_nodes]
    for value in [*read, *(fake if isinstance(fake, list | tuple) else [fake])]:
        if isinstance(value, torch.Tensor) and value.dtype.is_complex:
            raise Unsupported("operators of ONNX take no complex numbers")


_STRIDED = "aten.as_strided.default"
_LAYOUT_DEPENDENT = frozenset({"aten._linalg_det.default", "aten._linalg_slogdet.default"})


def _check_memory(call: Call) -> None:
    """Raise ModelError if the result depends on the memory layout of the input, since engines return contiguous arrays.

    PyTorch saves the LU factors of a matrix or of its transpose, by layout, and the backward graph expects the traced one.
    """
    if (target := str(call.target)) != _STRIDED and target not in _LAYOUT_DEPENDENT:
        return
    read = call.all_input_nodes[0].meta["val"]
    if target == _STRIDED and not (read.is_contiguous() and read.storage_offset() == 0):
        raise ModelError(f"{call.target} reads the memory around a tensor that is not contiguous")
    if target in _LAYOUT_DEPENDENT and len(call.users) > 1 and not read.is_contiguous():
        raise ModelError(f"what {call.target} keeps for its gradient depends on the order of its input in memory")


_PATH = re.compile(r"^[LG]\[['\"]\w+['\"]\]\.?|_modules\[['\"]?|['\"]\]|^L__self___?|\['|\(.*")


def _find_path(call: Call) -> str:
    """The qualified name of the submodule that makes the call, such as ``encoder.layer.3.output``; empty if unknown.

    Dynamo's prefix for the root module, such as ``L['self']``, is removed.
    """
    stack: Iterable[Any] = (call.meta.get("nn_module_stack") or {}).values()
    path = ""
    for entry in stack:
        path = entry[0]
    return "" if path.startswith("_empty") else _PATH.sub("", path).strip(".")
