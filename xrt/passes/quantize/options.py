"""What a caller may ask of quantization."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from xrt.errors import OptionError, did_you_mean
from xrt.graph import DType, Node, NodePattern

__all__ = ["ActivationType", "QuantizationOptions", "WeightType"]

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
