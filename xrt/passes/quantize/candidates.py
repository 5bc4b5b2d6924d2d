"""Which nodes can be quantized, and which values need a range for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from xrt.errors import OptionError, did_you_mean
from xrt.graph import DType, Function, Node, NodePattern, TensorType

__all__ = [
    "ActivationType",
    "QuantizationOptions",
    "WeightType",
    "find_end",
    "find_root",
    "list_activations",
    "list_calibrated_values",
    "why_not_quantized",
]

ActivationType: TypeAlias = Literal["uint8", "int8"]
WeightType: TypeAlias = Literal["int8", "uint8", "int4", "uint4"]
DEFAULT = (NodePattern(("Conv", "Gemm", "MatMul")),)
"""ConvTranspose is quantized where it is asked for: ONNX Runtime has no integer kernel of it."""
SMALLEST_BLOCK = 16


@dataclass(frozen=True, slots=True)
class QuantizationOptions:
    """Which nodes are quantized, and to what. Raises OptionError for an impossible value."""

    include: tuple[NodePattern, ...] = DEFAULT
    """The nodes, or their patterns as text: ``"Conv|Gemm"``, ``"name:/layer1/*"``. One of them must select a node."""
    exclude: tuple[NodePattern, ...] = ()
    """Nodes that stay as they are, in the same form."""
    activations: ActivationType = "uint8"
    symmetric_activations: bool = False
    """Whether the zero point of activations is in the middle of their type."""
    weights: WeightType = "int8"
    """Those of 4 bits are for weights alone: see `quantize_weights`."""
    symmetric_weights: bool = True
    """Whether the zero point of weights is in the middle of their type; ONNX Runtime's integer kernels want it so."""
    per_channel: bool = True
    """Whether each output channel of a weight has a scale of its own."""
    reduce_range: bool = False
    """Whether weights use 7 of their 8 bits: x86 processors without VNNI sum products of uint8 and int8 in 16 bits, and two
    products of 8 and 7 bits fit."""
    activation_products: bool = False
    """Whether a MatMul of two computed values is quantized, as in attention."""
    block_size: int = 32
    """How many rows of a weight of 4 bits share a scale."""

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            object.__setattr__(self, name, tuple(_read_patterns(getattr(self, name))))
        _check_choice("activations", self.activations, get_args(ActivationType))
        _check_choice("weights", self.weights, get_args(WeightType))
        for name in ("symmetric_activations", "symmetric_weights", "per_channel", "reduce_range", "activation_products"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False; got {getattr(self, name)!r}")
        size = self.block_size
        if type(size) is not int or size < SMALLEST_BLOCK or size & (size - 1):
            raise OptionError(f"block_size must be a power of two, at least {SMALLEST_BLOCK}; got {size!r}")

    def selects(self, node: Node) -> bool:
        """Whether the patterns select the node."""
        return any(one.matches(node) for one in self.include) and not any(one.matches(node) for one in self.exclude)

    @property
    def activation_dtype(self) -> DType:
        return DType.parse(self.activations)

    @property
    def weight_dtype(self) -> DType:
        return DType.parse(self.weights)


def _read_patterns(given: Iterable[NodePattern | str] | NodePattern | str) -> Iterable[NodePattern]:
    listed = [given] if isinstance(given, str | NodePattern) else given
    return (one if isinstance(one, NodePattern) else NodePattern.parse(one) for one in listed)


def _check_choice(name: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        raise OptionError(f"{name} must be one of {', '.join(known)}; got {given!r}.{did_you_mean(str(given), known)}")


CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"Gemm", "MatMul"})
BOUNDS = frozenset({"Clip", "Relu"})
"""Operators that a convolution's quantized result may have in it."""
_HAND_ON = frozenset(
    {
        *("DepthToSpace", "Expand", "Flatten", "Identity", "MaxPool", "Reshape", "Slice"),
        *("SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
"""Operators whose results are elements of their first input: they have its range. Pads bring other numbers."""


def why_not_quantized(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Return why a node stays in floating point; None where it is quantized. Types must be known: infer shapes first."""
    if node.op not in CONVOLUTIONS | PRODUCTS:
        return "its operator has no quantized form here"
    if not options.selects(node):
        return "no pattern selects it"
    if not all(_is_float32(name, function) for name in node.inputs[:2]):
        return "its operands are not known to be float32"
    if node.inputs[0] in function.constants:
        return "its first operand is constant"
    if node.inputs[1] not in function.constants:
        if node.op == "MatMul" and options.activation_products:
            return None
        return "both operands are computed" if node.op == "MatMul" else "its weights are computed"
    if function.constants[node.inputs[1]].array.size == 0 or len(function.constants[node.inputs[1]].shape) < 2:
        return "its weights are no matrix"
    return None


def _is_float32(name: str, function: Function) -> bool:
    type_ = function.get_type(name)
    return isinstance(type_, TensorType) and type_.dtype is DType.FLOAT32


def find_root(value: str, function: Function) -> str:
    """Return the value whose elements a value hands on: that of the nearest node that computes."""
    while (node := function.producer(value)) is not None and node.op in _HAND_ON and value == node.outputs[0]:
        value = node.inputs[0]
    return value


def find_end(node: Node, function: Function) -> str:
    """Return the result of a convolution, behind what only bounds it."""
    value = node.outputs[0]
    while len(users := function.users(value)) == 1 and not _is_output(value, function):
        reader = users[0].node
        if reader.op not in BOUNDS or reader.inputs[0] != value:
            break
        value = reader.outputs[0]
    return value


def _is_output(value: str, function: Function) -> bool:
    return any(output.name == value for output in function.outputs)


def list_activations(node: Node, function: Function) -> Iterator[str]:
    """Yield the values that a quantized node has in bytes: its computed operands, and the result of a convolution.

    A convolution's result has to be quantized for an engine to compute in integers, unless the Function returns it.
    """
    yield from (name for name in node.inputs[:2] if name not in function.constants)
    if node.op in CONVOLUTIONS and not _is_output(end := find_end(node, function), function) and function.users(end):
        yield end


def list_calibrated_values(function: Function, options: QuantizationOptions | None = None) -> list[str]:
    """Return the values that need a range, each once, in the order of the nodes.

    Without options those that any options may need. Types must be known: infer shapes first.
    """
    options = options or QuantizationOptions(include=("*",), activation_products=True)  # type: ignore[arg-type]  # texts are read
    quantized = [node for node in function.nodes if why_not_quantized(node, function, options) is None]
    return list(dict.fromkeys(find_root(name, function) for node in quantized for name in list_activations(node, function)))
