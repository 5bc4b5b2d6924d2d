"""Decompose nodes into other nodes: the writer, the rewriting of a Function, and shared decompositions.

Also here: whether the readers of a DequantizeLinear can compute in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Attribute, Constant, DType, Function, Node, TensorType, Type, Value, read_attributes
from xrt.graph.node import rename_node
from xrt.operators import Trait, has_trait

__all__ = [
    "Meaning",
    "NodeWriter",
    "as_function",
    "has_quantized_readers",
    "insert_nodes",
    "list_readers",
    "rewrite_nodes",
    "write_convolutions_as_products",
    "write_mean",
    "write_mean_variance",
    "write_nodes",
]


@dataclass(slots=True)
class NodeWriter:
    """The replacement of one node under construction; values are referred to by name."""

    node: Node
    function: Function
    """The Function that contains the node."""
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)

    def op(self, op_type: str, *inputs: str, output: str = "", attributes: Iterable[Attribute] = (), **more: Any) -> str:
        """Add a node with one result and return the result's name.

        ``attributes`` are copied from a node, ``more`` adds others by name.
        """
        name = output or f"{self._prefix}/spelled/{len(self.nodes)}"
        self.nodes.append(Node(op_type, inputs, (name,), (*attributes, *read_attributes(more)), name=name))
        return name

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """Add a constant and return its name."""
        name = f"{self._prefix}/spelled/constant/{len(self.constants)}"
        self.constants[name] = Constant(array)
        return name

    def number(self, value: float) -> str:
        """Add a scalar constant of the first input's type and return its name."""
        return self.constant(np.array(value, self.dtype(self.x).numpy))

    def cast(self, name: str, dtype: DType) -> str:
        """Add a Cast and return the name of its result."""
        return self.op("Cast", name, to=dtype.onnx)

    def find_constant(self, name: str) -> Constant | None:
        """Look up a constant, in the Function or added here; None for other values."""
        return self.constants.get(name) or self.function.constants.get(name)

    def get_type(self, name: str) -> TensorType:
        """The type of a tensor of the Function; raises ValueError if its shape is unknown."""
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise ValueError(f"{name!r} has the type {type_}")
        return type_

    def dtype(self, name: str) -> DType:
        """The element type of a tensor of the Function; raises ValueError if unknown or not a tensor."""
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType):
            raise ValueError(f"{name!r} has the type {type_}")
        return type_.dtype

    @property
    def _prefix(self) -> str:
        return next(iter(self.node.defines))

    @property
    def opset(self) -> int:
        """The opset of the default ONNX domain."""
        return self.function.opset()

    @property
    def x(self) -> str:
        """The first input."""
        return self.node.inputs[0]


def write_nodes(function: Function, write: Callable[[NodeWriter], bool]) -> Function:
    """Replace each node for which ``write`` returns True by the nodes that it wrote; same Function if there is none.

    The last written node computes the result of the original and inherits its name.
    """
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for node in function.nodes:
        writer = NodeWriter(node, function)
        if not write(writer):
            nodes.append(node)
            continue
        # The last node keeps name, control edges and device of the original.
        nodes += [*writer.nodes[:-1], replace(writer.nodes[-1], name=node.name, control=node.control, device=node.device)]
        constants |= writer.constants
    # Return the same object, so that callers can detect that nothing was rewritten.
    unchanged = len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True))
    return function if unchanged else function.replace(nodes=tuple(nodes), constants={**function.constants, **constants})


Meaning: TypeAlias = Callable[[Node, Function], Function | None]
"""Decomposes a node into a Function with the names of `as_function`; None to keep the node."""
SMALL = 64
"""Constants up to this many elements (axes, shapes, scales) stay constants, so that a decomposition can depend on them."""


def as_function(node: Node, function: Function) -> Function:
    """Build a Function of one node with canonical names, equal for equal nodes anywhere.

    Inputs are i0, i1, ... in the order of distinct values that the node reads, outputs o0, o1, ... in the order of the node.
    """
    names = _names(node)
    read = dict.fromkeys(filter(None, node.inputs))
    # Large constants become inputs, so that nodes with different weights share a cache entry.
    small = {names[name]: c for name in read if (c := function.constants.get(name)) is not None and c.array.size <= SMALL}
    return Function(
        inputs=tuple(Value(names[name], function.get_type(name)) for name in read if names[name] not in small),
        outputs=tuple(Value(names[name], function.get_type(name)) for name in node.outputs if name),
        nodes=(
            replace(node, inputs=tuple(names[n] for n in node.inputs), outputs=tuple(names[n] for n in node.outputs), name="it"),
        ),
        constants=small,
        opsets=function.opsets,
    )


def _names(node: Node) -> dict[str, str]:
    read = {name: f"i{k}" for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    return read | {name: f"o{k}" for k, name in enumerate(node.outputs) if name} | {"": ""}


def rewrite_nodes(function: Function, meaning: Meaning) -> Function:
    """Decompose each node for which ``meaning`` returns a Function, recursively."""
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        found = meaning(node, function)
        nodes += [node] if found is None else insert_nodes(rewrite_nodes(found, meaning), node, constants, types)
    if len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=tuple(nodes), constants=constants, types=types)


def insert_nodes(meaning: Function, node: Node, constants: dict[str, Constant], types: dict[str, Type]) -> list[Node]:
    """Inline a decomposition in place of ``node``; adds its constants and types to the given dicts.

    The producer of the first result gets the node's name, so that control edges to the node remain valid.
    """
    names = {new: old for old, new in _names(node).items()}

    def here(name: str) -> str:
        return names.setdefault(name, f"{next(iter(node.defines))}/meaning/{name}")

    # Names of inputs and outputs map to values outside; all others are new.
    known = set(names)
    constants |= {here(name): constant for name, constant in meaning.constants.items() if name not in known}
    types |= {here(name): type_ for name, type_ in meaning.types.items() if name not in known}
    parts = [rename_part(part, here) for part in meaning.nodes]
    first = next(iter(node.defines))
    return [replace(part, name=node.name) if first in part.outputs else part for part in parts]


def rename_part(part: Node, here: Callable[[str], str]) -> Node:
    """Rename all values of a node, captures of its bodies included, and drop its name."""
    names = {name: here(name) for name in (*part.uses, *part.defines)}
    return replace(rename_node(part, names, {}), name="", control=())


EPSILON = 1e-9
"""Added to the deviation by definition: https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html"""
MEAN_TAKES_AXES = 18
"""The first opset in which ReduceMean reads its axes from an input."""


def write_mean_variance(writer: NodeWriter, opset: int, output: str = "") -> str | None:
    """Write (x - mean) / (deviation + epsilon) and return its name; None for types that round the epsilon to 0.

    ``opset`` is the opset of the model, ``output`` the name of the result, by default a new one.

    E[x^2] - E[x]^2 can round to a negative variance, so the input is centered first. Centering twice also removes the rounding
    error of the mean, which the epsilon would magnify for constant rows.
    """
    if writer.dtype(writer.x) not in (DType.FLOAT32, DType.FLOAT64):
        return None
    axes = read_attributes({"axes": writer.node.attr("axes", (0, 2, 3))})
    centered = _write_centered(writer, _write_centered(writer, writer.x, axes, opset), axes, opset)
    variance = write_mean(writer, writer.op("Mul", centered, centered), axes, opset)
    deviation = writer.op("Add", writer.op("Sqrt", variance), writer.number(EPSILON))
    return writer.op("Div", centered, deviation, output=output)


def _write_centered(writer: NodeWriter, x: str, axes: tuple[Attribute, ...], opset: int) -> str:
    """Subtract the mean along the axes. The rounding error of the mean remains; centering again removes it."""
    return writer.op("Sub", x, write_mean(writer, x, axes, opset))


def write_mean(writer: NodeWriter, x: str, axes: tuple[Attribute, ...], opset: int, output: str = "") -> str:
    """Write the mean with keepdims=1; ``opset`` is the opset of the model, ``output`` the name of the result."""
    if opset < MEAN_TAKES_AXES:
        return writer.op("ReduceMean", x, attributes=axes, output=output)
    return writer.op("ReduceMean", x, writer.constant(np.array(axes[0].value)), output=output)


MOST_PLACES = 9
"""Maximum number of output positions for which a product is faster: measured so for 3 x 3, not for 5 x 5."""
SINCE = 11
"""The opset from which Pad and Slice take all arguments as inputs."""
MOST_BYTES = 1 << 26
"""Maximum size of the columns matrix, which copies the input once per output position."""


def write_convolutions_as_products(function: Function) -> Function:
    """Replace each Conv with computed weights and a small output by a Gemm; same Function if there is none.

    Dequantized weights keep their Conv, which libraries compute in integers.
    """
    return write_nodes(function, _write_convolution)


Sizes = tuple[int, ...]


def _write_convolution(writer: NodeWriter) -> bool:
    sizes = _find_sizes(writer.node, writer.function)
    if sizes is not None:
        _write_product(writer, *sizes)
    return sizes is not None


def _find_sizes(node: Node, function: Function) -> tuple[Sizes, Sizes, Sizes] | None:
    """Shapes of input, weights and result if the Conv should become a product; None otherwise."""
    # Only the plain form: no bias, groups or auto_pad.
    if node.op != "Conv" or len(node.inputs) != 2 or node.attr("group", 1) != 1 or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    if not _is_computed(node.inputs[1], function) or function.opset() < SINCE:
        return None
    shapes, size = list[Sizes](), 0
    for name in (*node.inputs, node.outputs[0]):
        type_ = function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in (DType.FLOAT32, DType.FLOAT64):
            return None
        size = type_.dtype.numpy.itemsize
        shapes.append(tuple(extent for extent in type_.shape if isinstance(extent, int)))
        if len(shapes[-1]) != len(type_.shape) or 0 in shapes[-1]:
            return None
    x, w, y = shapes
    places, elements = math.prod(y[2:]), math.prod(w[2:])
    # Size of the im2col matrix.
    is_small = places * math.prod(x[:2]) * elements * size <= MOST_BYTES
    return (x, w, y) if places <= MOST_PLACES and places < elements and is_small else None


def _is_computed(name: str, function: Function) -> bool:
    """Whether weights are neither constant nor dequantized."""
    producer = function.producer(name)
    return name not in function.constants and (producer is None or producer.op != "DequantizeLinear")


def _write_product(writer: NodeWriter, x: Sizes, w: Sizes, y: Sizes) -> None:
    """Multiply weights (M, C * window) by im2col columns (positions * N, C * window) and transpose to NC...."""
    node, axes = writer.node, len(x) - 2
    strides, dilations = (node.attr(name) or (1,) * axes for name in ("strides", "dilations"))
    pads = node.attr("pads") or (0,) * (2 * axes)
    source = writer.x
    if any(pads):
        begins, ends = (0, 0, *pads[:axes]), (0, 0, *pads[axes:])
        source = writer.op("Pad", source, _row(writer, [*begins, *ends]))
    spatial, steps = _row(writer, range(2, 2 + axes)), _row(writer, dilations)
    parts = []
    for place in product(*map(range, y[2:])):
        starts = [position * stride for position, stride in zip(place, strides, strict=True)]
        stops = [start + (size - 1) * step + 1 for start, size, step in zip(starts, w[2:], dilations, strict=True)]
        parts.append(writer.op("Slice", source, _row(writer, starts), _row(writer, stops), spatial, steps))
    whole = parts[0] if len(parts) == 1 else writer.op("Concat", *parts, axis=0)
    columns = writer.op("Reshape", whole, _row(writer, [-1, math.prod(w[1:])]))
    weights = writer.op("Reshape", node.inputs[1], _row(writer, [w[0], -1]))
    found = writer.op("Gemm", weights, columns, transB=1)
    spread = writer.op("Reshape", found, _row(writer, [w[0], *y[2:], x[0]]))
    writer.op("Transpose", spread, perm=[1 + axes, 0, *range(1, 1 + axes)], output=node.outputs[0])


def _row(writer: NodeWriter, items: Sequence[int]) -> str:
    return writer.constant(np.asarray(items, np.int64))


BYTES = frozenset({DType.INT8, DType.UINT8})
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_BOUNDS = frozenset({"Clip", "Relu"})
"""Operators that libraries fuse into the quantization that follows."""


def list_readers(node: Node, function: Function) -> list[Node]:
    """The nodes that read the first result; empty if it is also an output of the Function."""
    if any(value.name == node.outputs[0] for value in function.outputs):
        return []
    return [use.node for use in function.users(node.outputs[0])]


def has_quantized_readers(node: Node, function: Function, *, quantizing: frozenset[str] = frozenset()) -> bool:
    """Whether all readers of a DequantizeLinear are products or convolutions with a dequantized first operand.

    That operand must be computed from 8-bit integers. An operator in ``quantizing`` additionally requires that its result is
    quantized again, possibly after Relu or Clip. ``quantizing`` may also name elementwise operators whose other operand is
    dequantized; these require a constant with one scale. For a constant of one element one such reader suffices, because
    quantization tools share it between all readers.
    """
    found = [_has_quantized_operand(one, name, function, quantizing) for one, name in _iter_readers(node, function)]
    constant = function.constants.get(node.inputs[0])
    # Quantization tools share one scalar between unrelated readers.
    is_number = constant is not None and constant.array.size == 1
    return any(found) if is_number else bool(found) and all(found)


def _iter_readers(node: Node, function: Function) -> Iterator[tuple[Node, str]]:
    """Yield the readers of the result, through operators that libraries swap with a dequantization, with the value read."""
    for reader in list_readers(node, function):
        if has_trait(reader, Trait.REARRANGES) and reader.inputs[0] == node.outputs[0]:
            yield from _iter_readers(reader, function)
        else:
            yield reader, node.outputs[0]


def _has_quantized_operand(reader: Node, constant: str, function: Function, quantizing: frozenset[str]) -> bool:
    is_product = reader.op in _PRODUCTS
    if not is_product and reader.op not in quantizing:
        return False
    others = [reader.inputs[0]] if is_product else [name for name in reader.inputs if name != constant]
    if len(others) != 1 or not _is_dequantized(others[0], function):
        return False
    if not is_product and not _has_one_scale(constant, function):
        return False
    return reader.op not in quantizing or all(last.op == "QuantizeLinear" for last in _iter_ends(reader, function))


def _has_one_scale(name: str, function: Function) -> bool:
    """Whether a value is dequantized per tensor, not per channel."""
    producer = function.producer(name)
    while producer is not None and has_trait(producer, Trait.REARRANGES):
        producer = function.producer(producer.inputs[0])
    scale = None if producer is None else function.constants.get(producer.inputs[1])
    return scale is not None and scale.array.size == 1


def _is_dequantized(name: str, function: Function) -> bool:
    """Whether a value is dequantized from computed 8-bit integers, possibly moved since."""
    producer = function.producer(name)
    while producer is not None and has_trait(producer, Trait.REARRANGES):
        producer = function.producer(producer.inputs[0])
    if producer is None or producer.op != "DequantizeLinear" or producer.inputs[0] in function.constants:
        return False
    type_ = function.get_type(producer.inputs[0])
    return isinstance(type_, TensorType) and type_.dtype in BYTES


def _iter_ends(node: Node, function: Function) -> Iterator[Node]:
    """Yield the readers of the node's result, through Relu and Clip; the node itself if there are none."""
    readers = list_readers(node, function)
    if not readers:
        yield node
    for reader in readers:
        if reader.op in _BOUNDS and reader.inputs[0] == node.outputs[0]:
            yield from _iter_ends(reader, function)
        else:
            yield reader
