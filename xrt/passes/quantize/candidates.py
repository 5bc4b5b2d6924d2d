"""Select the nodes to quantize, and the values that need a calibrated range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from xrt.errors import OptionError, did_you_mean
from xrt.graph import DType, Function, Node, NodePattern, TensorType
from xrt.operators import Trait, has_trait

ActivationType: TypeAlias = Literal["uint8", "int8"]
DEFAULT_PATTERNS = (NodePattern(("Conv", "Gemm", "MatMul")),)
"""The nodes that are quantized by default. ConvTranspose is not: ONNX Runtime has no integer kernel for it."""


@dataclass(frozen=True, slots=True)
class QuantizationOptions:
    """Which nodes to quantize, and to which types. Raises OptionError for an invalid value."""

    include: tuple[NodePattern, ...] = DEFAULT_PATTERNS
    """Nodes to quantize, as patterns or text: ``"Conv|Gemm"``, ``"name:/layer1/*"``. A node must match a pattern."""
    exclude: tuple[NodePattern, ...] = ()
    """Nodes to keep in floating point, as patterns or text."""
    activations: ActivationType = "uint8"
    symmetric_activations: bool = False
    """Whether the zero point of activations is the middle of their type."""
    per_channel: bool = True
    """Whether each output channel of a weight has its own scale."""
    reduce_range: bool = False
    """Whether weights use 7 of 8 bits. x86 processors without VNNI add pairs of uint8 x int8 products in 16 bits, which overflow
    with 8-bit weights."""
    activation_products: bool = False
    """Whether to quantize a MatMul of two activations, as in attention."""

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            patterns = getattr(self, name)
            listed = [patterns] if isinstance(patterns, str | NodePattern) else patterns  # one pattern, or several
            parsed = (pattern if isinstance(pattern, NodePattern) else NodePattern.parse(pattern) for pattern in listed)
            object.__setattr__(self, name, tuple(parsed))
        choices = get_args(ActivationType)
        if self.activations not in choices:
            nearest = did_you_mean(str(self.activations), choices)
            raise OptionError(f"activations must be one of {', '.join(choices)}; got {self.activations!r}.{nearest}")
        for name in ("symmetric_activations", "per_channel", "reduce_range", "activation_products"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False; got {getattr(self, name)!r}")

    def selects(self, node: Node) -> bool:
        return any(p.matches(node) for p in self.include) and not any(p.matches(node) for p in self.exclude)

    @property
    def activation_dtype(self) -> DType:
        return DType.parse(self.activations)


CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"Gemm", "MatMul"})
FUSED_ACTIVATIONS = frozenset({"Clip", "Relu"})
"""Operators that engines fuse into a quantized convolution before them."""


def why_not_quantized(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Explain why a node stays in floating point, or return None if it is quantized. Infer shapes first."""
    if node.op not in CONVOLUTIONS | PRODUCTS:
        return "its operator is not a convolution or matrix product"
    if not options.selects(node):
        return "no pattern selects it"
    types = map(function.get_type, node.inputs[:2])
    if not all(isinstance(type_, TensorType) and type_.dtype is DType.FLOAT32 for type_ in types):
        return "its operands are not known to be float32"
    if node.inputs[0] in function.constants:
        return "its first operand is constant"
    if node.inputs[1] not in function.constants:
        if node.op == "MatMul" and options.activation_products:
            return None
        return "both operands are computed" if node.op == "MatMul" else "its weights are computed"
    if function.constants[node.inputs[1]].array.size == 0 or len(function.constants[node.inputs[1]].shape) < 2:
        return "its weights are not a matrix"
    return None


def find_range_source(value: str, function: Function) -> str:
    """Find the value whose calibrated range also applies to ``value``, because nodes between them only select elements."""
    while (node := function.producer(value)) is not None and has_trait(node, Trait.SELECTS) and value == node.outputs[0]:
        # A constant, such as an embedding table, has no calibrated range.
        if node.inputs[0] in function.constants:
            break
        value = node.inputs[0]
    return value


def find_fused_result(node: Node, function: Function) -> str:
    """Find the result of a convolution including the `FUSED_ACTIVATIONS` after it; for another node, return output 0."""
    value = node.outputs[0]
    # Only a single reader can be fused.
    while len(users := function.users(value)) == 1 and not _is_output(value, function):
        reader = users[0].node
        if reader.op not in FUSED_ACTIVATIONS or reader.inputs[0] != value:
            break
        value = reader.outputs[0]
    return value


def _is_output(value: str, function: Function) -> bool:
    return any(output.name == value for output in function.outputs)


def list_activations(node: Node, function: Function) -> Iterator[str]:
    """Yield the activations of a node that are quantized: computed operands, and the result of a convolution.

    Engines have an integer kernel for a convolution only if its result is quantized too.
    """
    yield from (name for name in node.inputs[:2] if name not in function.constants)
    if node.op in CONVOLUTIONS:
        result = find_fused_result(node, function)
        if function.users(result) and not _is_output(result, function):
            yield result


def list_calibrated_values(function: Function, options: QuantizationOptions | None = None) -> list[str]:
    """List the values that need a calibrated range, without duplicates, in node order. Infer shapes first.

    Without options, list the values that are needed with any options.
    """
    options = options or QuantizationOptions(include=("*",), activation_products=True)  # type: ignore[arg-type]  # strings are parsed
    quantized = [node for node in function.nodes if why_not_quantized(node, function, options) is None]
    activations = (name for node in quantized for name in list_activations(node, function))
    return list(dict.fromkeys(find_range_source(name, function) for name in activations))
