"""Lower a captured FX graph to ONNX operators: each call by its rule or by a decomposition, else as one opaque node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
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
from xrt.builder.record_op import Symbol, apply, emit, get_builder
from xrt.errors import InputError, ModelError
from xrt.frontends.torch.dtypes import from_torch_dtype, share_array
from xrt.frontends.torch.rules import RULES, Unsupported
from xrt.frontends.torch.rules.table import as_tensor, bind_arguments
from xrt.frontends.torch.symbols import SymbolicNumber, Symbols
from xrt.graph import DType, TensorType, read_attributes
from xrt.graph.constants import Constant
from xrt.graph.node import ATEN_DOMAIN, OpaqueCall, Tagged
from xrt.graph.types import may_equal

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node as Call

    from xrt.graph import Type


CHECKS = frozenset(
    f"aten.{name}"
    for name in (
        *("_assert_tensor_metadata.default", "_assert_scalar.default", "_functional_assert_scalar.default"),
        *("_assert_async.msg", "_assert_async.default", "_functional_assert_async.msg", "_linalg_check_errors.default"),
        *("sym_constrain_range.default", "sym_constrain_range_for_size.default"),
        "_functional_sym_constrain_range_for_size.default",
    )
)
"""Operators that only check values. The lowering drops them."""


def _encode(value: Any, inputs: list[Symbol]) -> Any:
    """Encode an argument of an opaque call. Tensors and symbolic numbers are appended to ``inputs`` and encoded as an index."""
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


def _inline(lowering: Lowering, *args: Any) -> Any:
    """Inline the subgraph of a higher-order operator that only wraps a subgraph, such as `wrap_with_autocast`."""
    # Each wrapper has other options before the subgraph. After it come the operands.
    index = next(i for i, arg in enumerate(args) if isinstance(arg, torch.fx.GraphModule))
    subgraph, operands = args[index], list(args[index + 1 :])
    input_count = sum(call.op == "placeholder" for call in subgraph.graph.nodes)
    if len(operands) > input_count:
        operands = [operand for operand in operands if not isinstance(operand, str)]  # the name of the subgraph
    # Some wrappers pass all operands as one list.
    if len(operands) == 1 and isinstance(operands[0], list) and input_count != 1:
        operands = operands[0]
    return lowering.inline(subgraph, operands)


def _cond(lowering: Lowering, condition: Any, then_graph: GraphModule, else_graph: GraphModule, operands: Any) -> Sequence[Any]:
    if isinstance(condition, bool):
        return lowering.inline(then_graph if condition else else_graph, operands)  # type: ignore[no-any-return]  # a list
    then_branch, else_branch = _make_body(lowering, then_graph, operands), _make_body(lowering, else_graph, operands)
    results = apply("If", [_as_condition(condition)], {"then_branch": then_branch, "else_branch": else_branch})
    return _insert_nones(results, then_graph)


def _while_loop(lowering: Lowering, condition: GraphModule, body: GraphModule, carried: Any, captured: Any) -> Sequence[Any]:
    """Lower torch.while_loop to a Loop without a trip count. Both subgraphs read the values ``captured``."""
    lowering.add_constants(condition, body)
    carried = [as_tensor(value) for value in carried]

    def evaluate_condition(states: Sequence[Any]) -> Tensor:
        (result,) = _as_sequence(lowering.inline(condition, [*states, *captured]))
        return _as_condition(result)

    def run_body(_iteration: Tensor, _condition: Tensor, *states: Tensor) -> list[Tensor]:
        with lowering.enter_body():
            results = [as_tensor(value) for value in lowering.inline(body, [*states, *captured])]
            return [evaluate_condition(results), *results]

    # Evaluated outside of the body too, because ONNX's Loop reads a condition before the first iteration.
    return _as_sequence(apply("Loop", [None, evaluate_condition(carried), *carried], {"body": run_body}))


def _scan(lowering: Lowering, body: GraphModule, states: Any, sequences: Any, captured: Any) -> Sequence[Any]:
    """Lower torch.scan to a Scan over axis 0 of ``sequences``, from initial ``states``. The body reads ``captured`` values."""
    inputs = [as_tensor(value) for value in (*states, *sequences)]
    attributes = {"body": _make_body(lowering, body, captured), "num_scan_inputs": len(sequences)}
    return _insert_nones(apply("Scan", inputs, attributes), body)


def _with_effects(_: Lowering, token: Any, operator: Any, *__: Any) -> Sequence[Any]:
    """Drop an operator with an effect token if it only checks values, else raise ModelError. The new token is None."""
    if str(operator) not in CHECKS:
        raise ModelError(f"the module calls {operator}, whose effects no Function has; run it without XRT")
    return [None]


_WRAPPERS = (
    *("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap_activation_checkpoint", "tag_activation_checkpoint"),
    *("hints_wrapper", "invoke_subgraph", "strict_mode", "wrap"),
)
_CONTROL_FLOW_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_WRAPPERS, _inline),
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": lambda lowering, body, sequences, captured: _scan(lowering, body, [], sequences, captured),
    "with_effects": _with_effects,
}


def _make_body(lowering: Lowering, subgraph: GraphModule, captured: Sequence[Any]) -> Callable[..., list[Tensor]]:
    """Make the function that traces the body of a node: it inlines the subgraph on the body's inputs and ``captured`` values."""
    lowering.add_constants(subgraph)

    def run_body(*operands: Tensor) -> list[Tensor]:
        with lowering.enter_body():
            results = lowering.inline(subgraph, [*operands, *captured])
            return [as_tensor(result) for result in results if result is not None]

    return run_body


def _insert_nones(results: Any, subgraph: GraphModule) -> list[Any]:
    """Insert None where the subgraph returns None, since the body of a node has no outputs for these results."""
    (output,) = [call for call in subgraph.graph.nodes if call.op == "output"]
    values = iter(_as_sequence(results))
    return [None if call is None else next(values) for call in output.args[0]]


def _as_sequence(results: Any) -> Sequence[Any]:
    return results if isinstance(results, list | tuple) else (results,)


def _as_condition(value: Any) -> Tensor:
    tensor = as_tensor(value)
    if tensor.dtype is not DType.BOOL:
        tensor = emit("Cast", tensor, to=DType.BOOL)
    return tensor if tensor.shape == () else emit("Squeeze", tensor)


# ---------------------------------------------------------------------- decompositions
#
# Operators without a lowering rule are traced call by call through a decomposition. Most are PyTorch's; a few are XRT's, for
# operators that PyTorch does not decompose.


def trace_decomposition(call: Call, read: Sequence[int]) -> GraphModule | None:
    """Trace the decomposition of a call to a graph whose inputs are the FX nodes among the call's arguments.

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

    def call_operator(*values: Any) -> Any:
        arguments = list(leaves)
        for index, value in zip(node_indices, values, strict=True):
            arguments[index] = value
        args, kwargs = pytree.tree_unflatten(arguments, structure)
        results = call.target(*args, **kwargs)
        if not isinstance(results, list | tuple):
            return results
        return [result if index in read else None for index, result in enumerate(results)]

    # Functionalization costs time, and only some decompositions of PyTorch's C++ code need it.
    for function in (call_operator, dispatch_functionalize(call_operator, FunctionalTensorMode())):
        try:
            with mode, enable_python_dispatcher(), torch.no_grad(), torch._C._DisableAutocast():
                subgraph = make_fx(function, {call.target: decompose})(*fakes)
        except Exception:  # noqa: BLE001  # a decomposition may not support these arguments
            continue
        subgraph.graph.eliminate_dead_code()
        operators = {node.target for node in subgraph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
        if not any(operator is call.target or _is_unsupported(operator) for operator in operators):
            return subgraph
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

    activate = functional.gelu if a.use_gelu else functional.relu

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = activate(functional.linear(x, a.ffn_weight_1, a.ffn_bias_1))
        return functional.linear(inner, a.ffn_weight_2, a.ffn_bias_2)

    def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (a.embed_dim,), weight, bias, a.eps)

    if a.norm_first:
        x = a.src + attend(normalize(a.src, a.norm_weight_1, a.norm_bias_1))
        return x + feed(normalize(x, a.norm_weight_2, a.norm_bias_2))
    x = normalize(a.src + attend(a.src), a.norm_weight_1, a.norm_bias_1)
    return normalize(x + feed(x), a.norm_weight_2, a.norm_bias_2)


_SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBER_TYPES = {torch.SymInt: DType.INT64, torch.SymFloat: DType.FLOAT64, torch.SymBool: DType.BOOL}


class Lowering:
    """Lowers a captured graph into the active builder.

    ``opaque`` maps each operator that became an opaque node to the reason. If ``uses_torch_generator``, random operators become
    opaque nodes too, so that they draw from PyTorch's generator.
    """

    def __init__(self, builder: Builder, symbols: Symbols, *, uses_torch_generator: bool = False) -> None:
        self._uses_torch_generator = uses_torch_generator
        self.builder = builder
        self.symbols = symbols
        self.values: dict[Call, Any] = {}
        self.opaque: dict[Any, str] = {}
        self._root = builder
        self._constants: dict[object, Tensor] = {}
        self._decomposing: list[Any] = []
        """Operators whose decompositions are being lowered, outermost first."""
        self._decompositions: dict[object, GraphModule | None] = {}
        """Traced decompositions, by operator and arguments. The layers of a model repeat the same calls."""

    def add_input(self, name: str, fake: Any) -> Tensor:
        if not isinstance(fake, torch.Tensor):
            tensor = self.builder.input(name, TensorType(_NUMBER_TYPES[type(fake)], ()))
            self.symbols.record_value(fake.node.expr, tensor)
            return tensor
        tensor = self.builder.input(name, self.get_type(fake))
        self.symbols.record_shape(tensor, fake.shape)
        return tensor

    def add_constant(self, name: str, tensor: torch.Tensor) -> Tensor:
        """Add a tensor as a constant that shares its memory. Tensors of equal address, shape and strides become one constant."""
        # All empty tensors may have the same address.
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.numel() else name
        if key not in self._constants:
            unique_name = self._root.names.take(name)
            constant = Constant(share_array(tensor))
            self._root.constants[unique_name] = constant
            self._constants[key] = Tensor(self._root, unique_name, constant.type)
        return self._constants[key]

    def get_type(self, fake: torch.Tensor) -> TensorType:
        if fake.layout is not torch.strided:
            raise ModelError(f"the module computes with a tensor of layout {fake.layout}; only dense tensors are lowered")
        return TensorType(from_torch_dtype(fake.dtype), tuple(map(self.symbols.make_dim, fake.shape)))

    def run(self, graph: Graph, owner: GraphModule) -> Any:
        """Lower all calls of a graph and return its outputs. The caller has set `values` of its placeholders."""
        for call in graph.nodes:
            if call.op == "output":
                return self.lower_argument(call.args[0])
            if call.op == "get_attr":
                self.values[call] = self._read_attribute(call, owner)
            elif call.op == "call_function":
                self.values[call] = self._lower_call(call)
            elif call.op != "placeholder":
                raise ModelError(f"the captured graph has a {call.op} of {call.target}; only calls of operators are lowered")
        return None

    def lower_argument(self, value: Any) -> Any:
        """Replace the FX nodes in an argument by their lowered values, and PyTorch's symbolic numbers by XRT's."""
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self.lower_argument(item) for item in value]
        if isinstance(value, dict):
            return {key: self.lower_argument(item) for key, item in value.items()}
        return self.symbols.make_number(value) if isinstance(value, _SYMBOLIC_NUMBERS) else value

    def _read_attribute(self, call: Call, owner: GraphModule) -> Any:
        value: Any = owner
        for part in str(call.target).split("."):
            value = getattr(value, part)
        return self.add_constant(str(call.target), value) if isinstance(value, torch.Tensor) else value

    def _lower_call(self, call: Call) -> Any:
        """Lower one call. Return a tensor, a number, None, or a list of these."""
        fake = call.meta.get("val")
        name = str(call.target)
        if isinstance(fake, _SYMBOLIC_NUMBERS):
            return self._lower_number(call, fake, name)
        if name in CHECKS:
            return None
        args, kwargs = self.lower_argument(call.args), self.lower_argument(call.kwargs)
        path = _find_path(call)
        with self.builder.scope(path) if path else nullcontext():
            if isinstance(call.target, torch._ops.OpOverload):
                return self._lower_operator(call, name, args, kwargs, fake)
            return self._lower_other(call, args, fake)

    def _lower_number(self, call: Call, fake: Any, name: str) -> Any:
        """Lower a call that returns a symbolic number. For ``item``, record that the number is read from the tensor."""
        if name in ("aten.item.default", "aten._local_scalar_dense.default") and not fake.node.expr.is_number:
            scalar = emit("Reshape", self.lower_argument(call.args[0]), _SCALAR_SHAPE)
            dtype = _NUMBER_TYPES[type(fake)]
            if scalar.dtype is not dtype:
                scalar = emit("Cast", scalar, to=dtype)
            self.symbols.record_value(fake.node.expr, scalar)
        return self.symbols.make_number(fake)

    def _lower_other(self, call: Call, args: Any, fake: Any) -> Any:
        name = getattr(call.target, "__name__", str(call.target))
        if isinstance(call.target, torch._ops.OperatorBase):
            rule = _CONTROL_FLOW_RULES.get(name)
            if rule is None:
                raise ModelError(f"the module uses the higher-order operator {name}, which has no ONNX form; run it without XRT")
            results = rule(self, *args)
            # An inlined graph has recorded the sizes of its results already.
            if rule is _inline or not isinstance(fake, list | tuple):
                return results
            return [self.record_result(result, captured) for result, captured in zip(results, fake, strict=False)]
        if name == "getitem":
            return call.target(*args)
        if isinstance(fake, torch.Tensor):
            raise ModelError(f"the module uses {name}, which is no operator of PyTorch; run it without XRT")
        return fake  # a number that the capture already knows

    def inline(self, subgraph: GraphModule, args: Sequence[Any]) -> Any:
        placeholders = [call for call in subgraph.graph.nodes if call.op == "placeholder"]
        for call, value in zip(placeholders, args, strict=True):
            self.values[call] = self.record_result(value, call.meta.get("val")) if isinstance(value, Tensor) else value
        return self.run(subgraph.graph, subgraph)

    @contextmanager
    def enter_body(self) -> Iterator[None]:
        """Context manager: record into the body that is being traced, not into the enclosing graph."""
        outer, self.builder = self.builder, get_builder("a body")
        try:
            with self.symbols.enter_body():
                yield
        finally:
            self.builder = outer

    def add_constants(self, *subgraphs: GraphModule) -> None:
        """Add the tensors that subgraphs read as constants of the root graph, before a body that reads them is traced."""
        for subgraph in subgraphs:
            for call in subgraph.graph.nodes:
                if call.op == "get_attr":
                    self._read_attribute(call, subgraph)

    def record_result(self, value: Any, fake: Any) -> Any:
        """Record the symbolic sizes in a tensor's shape, or the value of a symbolic number. Return the recorded result."""
        if isinstance(fake, _SYMBOLIC_NUMBERS):
            if isinstance(value, Tensor) and not fake.node.expr.is_number:
                self.symbols.record_value(fake.node.expr, value)
            return self.symbols.make_number(fake)
        if isinstance(fake, torch.Tensor) and value is not None:
            self.symbols.record_shape(value, fake.shape)
        return value

    def _lower_operator(self, call: Call, name: str, args: Any, kwargs: Any, fake: Any) -> Any:
        """Lower a call by its rule, else by its decomposition, else as an opaque node."""
        rule = RULES.get(name)
        # An error, not a reason for an opaque node: that would be wrong too, because engines pass it contiguous arrays.
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
        self.opaque.setdefault(call.target, reason)
        return self._record_opaque(call, args, kwargs, fake, reason)

    def _decompose(self, call: Call, fake: Any) -> Any:
        """Lower a call by its decomposition; None if there is none, or if a part of it cannot be lowered."""
        # A decomposition may call the operator that it decomposes with other arguments.
        if call.target in self._decomposing:
            return None
        leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
        read = _list_read_results(call, fake)
        key = (call.target, structure, read, *map(_describe_argument, leaves))
        subgraph = self._decompositions[key] if key in self._decompositions else trace_decomposition(call, read)
        # An unbacked symbol stands for a value of this call only, so another call cannot use the trace.
        if subgraph is None or not any(free_unbacked_symbols(node.meta.get("val")) for node in subgraph.graph.nodes):
            self._decompositions[key] = subgraph
        if subgraph is None:
            return None
        inputs = [self.values[leaf] for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        self._decomposing.append(call.target)
        try:
            return self._add_types(self.inline(subgraph, inputs), fake)
        except (Unsupported, ModelError):
            return None
        finally:
            self._decomposing.pop()

    def _check_one_type(self, name: str, args: Any) -> None:
        """Raise InputError if the operands have different element types, which PyTorch rejects at run time but can export."""
        operands = [operand for operand in args if isinstance(operand, Tensor)]
        # The last operand is usually a weight or bias of the module, so that an operand of another type is the one to convert.
        wrong = next((operand for operand in operands if operand.dtype is not operands[-1].dtype), None)
        if wrong is None:
            return
        right = next(operand for operand in operands if operand.dtype is not wrong.dtype)
        # The likely cause is an input of the model of the wrong type.
        source = next((value for value in self._root.inputs if value.type and value.dtype is wrong.dtype), wrong)
        raise InputError(
            f"input {source.name!r} is {wrong.dtype}, and {right.name!r} is {right.dtype}: {name.split('.')[1]} of "
            f"PyTorch takes one element type; convert the input, or the module"
        )

    def _record_opaque(self, call: Call, args: Any, kwargs: Any, fake: Any, reason: str) -> Any:
        """Record a call as an opaque node with the captured types; raises ModelError if the operator writes to its inputs."""
        schema = call.target._schema
        if schema.is_mutable:
            raise ModelError(f"operator {schema.name} writes to its inputs and could not be made functional: {reason}")
        inputs: list[Symbol] = []
        encoded_args = tuple(_encode(arg, inputs) for arg in args)
        encoded_kwargs = {name: _encode(value, inputs) for name, value in kwargs.items()}
        operator = f"{schema.name}.{call.target._overloadname or 'default'}"
        opaque_call = OpaqueCall(operator, encoded_args, encoded_kwargs, reason)

        has_several_results = isinstance(fake, list | tuple)
        fakes = fake if has_several_results else [fake]
        result_types = self._get_types(call, fake)
        types: list[Type | None] = list(result_types) if has_several_results else [result_types]
        labels = [str(index + 1) for index in range(len(types))]
        attributes = read_attributes(opaque_call.attributes)
        self.builder.import_domain(ATEN_DOMAIN, 1)
        node = self.builder.new_node(opaque_call.op_type, inputs, len(types), attributes, domain=ATEN_DOMAIN, labels=labels)
        # PyTorch computes results that nobody reads, too. An empty name omits such an output.
        names = tuple(name if type_ is not None else "" for name, type_ in zip(node.outputs, types, strict=True))
        results = [tensor if tensor.name else None for tensor in self.builder.record(replace(node, outputs=names), types)]
        for tensor, captured in zip(results, fakes, strict=True):
            if tensor is not None:
                self.symbols.record_shape(tensor, captured.shape)
        return results if has_several_results else results[0]

    def _get_types(self, call: Call, fake: Any) -> Any:
        """Get the type of the result, None if it is not a tensor. For several results, a tuple with None for unused results."""
        if not isinstance(fake, list | tuple):
            return self.get_type(fake) if isinstance(fake, torch.Tensor) else None
        read = _list_read_results(call, fake)
        return tuple(
            self.get_type(item) if isinstance(item, torch.Tensor) and index in read else None for index, item in enumerate(fake)
        )

    def _add_types(self, result: Any, fake: Any) -> Any:
        """Cast a rule's results to the captured types. Raises Unsupported if a shape contradicts the captured shape."""
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


def _list_read_results(call: Call, fake: Any) -> tuple[int, ...]:
    """List the indices of the results that other calls read; empty for a call with a single result."""
    if not isinstance(fake, list | tuple):
        return ()
    if any(getattr(user.target, "__name__", "") != "getitem" for user in call.users):
        return tuple(range(len(fake)))
    return tuple(sorted({user.args[1] for user in call.users if user.users}))  # getitem(call, index)


def _describe_argument(leaf: Any) -> object:
    """Describe what a decomposition depends on in an argument, as a dict key."""
    fake = leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else None
    if isinstance(fake, torch.Tensor):
        return fake.dtype, str(tuple(fake.shape))
    return type(leaf), str(leaf if fake is None else fake)


def _check_not_complex(fake: Any, call: Call) -> None:
    read = [node.meta.get("val") for node in call.all_input_nodes]
    for value in [*read, *(fake if isinstance(fake, list | tuple) else [fake])]:
        if isinstance(value, torch.Tensor) and value.dtype.is_complex:
            raise Unsupported("operators of ONNX take no complex numbers")


_LAYOUT_DEPENDENT = frozenset({"aten._linalg_det.default", "aten._linalg_slogdet.default"})
"""Operators that return the LU factors of a matrix or of its transpose, depending on the memory layout."""


def _check_memory(call: Call) -> None:
    """Raise ModelError if the result depends on the memory layout of the input, since engines return contiguous arrays."""
    operator = str(call.target)
    if operator == "aten.as_strided.default":
        tensor = call.all_input_nodes[0].meta["val"]
        if not tensor.is_contiguous() or tensor.storage_offset() != 0:
            raise ModelError(f"{operator} reads the memory around a tensor that is not contiguous")
    # With several users, the backward graph reads the factors, too.
    if operator in _LAYOUT_DEPENDENT and len(call.users) > 1 and not call.all_input_nodes[0].meta["val"].is_contiguous():
        raise ModelError(f"what {operator} keeps for its gradient depends on the order of its input in memory")


_PATH_NOISE = re.compile(r"^[LG]\[['\"]\w+['\"]\]\.?|_modules\[['\"]?|['\"]\]|^L__self___?|\['|\(.*")


def _find_path(call: Call) -> str:
    """Find the qualified name of the submodule that makes the call, such as ``encoder.layer.3.output``; empty if unknown."""
    stack = list((call.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return "" if path.startswith("_empty") else _PATH_NOISE.sub("", path).strip(".")
