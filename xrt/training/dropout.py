"""Dropout with a seed: masks from integer arithmetic in ONNX's operators, so that every engine drops the same elements.

The mask of an element is a hash of the seed, the number of the call, the Dropout and the element's place: nothing is drawn in an
order. A session that is restored goes on with the masks that it would have had. The hash is `lowbias32` of Chris Wellons's
hash prospector, a permutation of 32 bits: a call and a Dropout give a key to it, and the call's enters between its products too.
Large unsigned integers are not moved about, so that an engine that computes them in 31 bits takes none of these operators.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.errors import OptionError
from xrt.graph import DType, Function, Node, State, TensorType, is_training
from xrt.passes import infer_shapes
from xrt.passes.gradient.preparation import OPSET
from xrt.passes.gradient.recording import continue_function
from xrt.passes.opset_upgrade import upgrade_opset

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor

__all__ = ["CALLS", "SEED", "write_dropout"]

SEED, CALLS = "dropout.seed", "dropout.calls"
"""Names of the states: the seed that the user gives, and how many calls were made."""

BITS = 23
"""How many bits of a hash are compared with the ratio. Engines that compare in float32 do it exactly."""

ROW = 4096
"""How many places in a row share what does not depend on the column."""

_UINT32 = TensorType(DType.UINT32, ())


def write_dropout(function: Function, seed: int) -> tuple[Function, list[State]]:
    """Return the Function with each Dropout in training form written by a mask from a seed, and the states that this makes.

    Without such a Dropout the Function is returned as it is, and no states. A Dropout in the body of an If, a Loop or a Scan
    stays as it is. Raises OptionError unless the seed is an integer of 32 bits, ModelError where the opset cannot be upgraded.
    """
    if type(seed) is not int or not 0 <= seed < 1 << 32:
        raise OptionError(f"seed must be an integer from 0 to {(1 << 32) - 1}; got {seed!r}")
    if not any(_drops(node, function) for node in function.nodes):
        return function, []
    function = infer_shapes(upgrade_opset(infer_shapes(function), OPSET))
    builder, tensors = continue_function(function)
    nodes, builder.nodes = builder.nodes, []
    places = [node.name for node in nodes if _drops(node, function)]
    with builder:
        start, calls = builder.input(SEED, _UINT32), builder.input(CALLS, _UINT32)
        with builder.scope("dropout"):
            call = _hash(emit("BitwiseXor", _hash(emit("BitwiseXor", start, _array(0))), calls))
        for node in nodes:
            if node.name in places:
                _record_mask(builder, node, tensors, call, places.index(node.name))
            else:
                builder.nodes.append(node)
        for value in function.outputs:
            builder.output(tensors[value.name])
        builder.output(emit("BitwiseXor", start, np.array(0, np.uint32)), f"{SEED}_next")
        builder.output(calls + np.array(1, np.uint32), f"{CALLS}_next")
    built = builder.function().replace(aliases=function.aliases, doc=function.doc, metadata=function.metadata)
    return built, [State(SEED, f"{SEED}_next", seed), State(CALLS, f"{CALLS}_next")]


def _drops(node: Node, function: Function) -> bool:
    return node.op == "Dropout" and is_training(node, function)


def _array(value: int) -> np.ndarray[Any, Any]:
    """Return one integer with an axis: NumPy warns of those without one where a product wraps around."""
    return np.array([value], np.uint32)


def _hash(x: Tensor, key: Tensor | None = None) -> Tensor:
    """Return lowbias32 of unsigned integers of 32 bits."""
    x = emit("Mul", _mix(x, 16), _array(0x7FEB352D))
    if key is not None:
        x = emit("BitwiseXor", x, key)
    return _mix(emit("Mul", _mix(x, 15), _array(0x846CA68B)), 16)


def _mix(x: Tensor, count: int) -> Tensor:
    return emit("BitwiseXor", x, emit("BitShift", x, _array(count), direction="RIGHT"))


def _record_mask(builder: Builder, node: Node, tensors: dict[str, Tensor], call: Tensor, number: int) -> None:
    """Record x * m for a Dropout, where m is 0 where an element is dropped and 1 / (1 - ratio) elsewhere; and its mask."""
    x = tensors[node.inputs[0]]
    with builder.scope(f"{node.name}/mask"), builder.device(node.device):
        flag = None if node.inputs[2] in builder.constants else tensors[node.inputs[2]]
        limit, scale = _read_ratio(builder, node, tensors, x.dtype)
        key = _hash(emit("BitwiseXor", call, _array(number)))
        keep = _compare_places(x, key, call, limit)
        if flag is not None:  # known in a call only
            keep = emit("Or", keep, emit("Not", flag))
            scale = emit("Where", flag, scale, np.array(1, x.dtype.numpy))
        factor = emit("Where", keep, scale, np.array(0, x.dtype.numpy))
    builder.record(replace(node, op_type="Mul", inputs=(x.name, factor.name), outputs=node.outputs[:1], attributes=()), [x.type])
    if len(node.outputs) > 1 and node.outputs[1]:
        mask = tensors[node.outputs[1]]
        builder.record(Node("Identity", (keep.name,), (mask.name,)), [mask.type])


def _read_ratio(builder: Builder, node: Node, tensors: dict[str, Tensor], dtype: DType) -> tuple[Tensor, Tensor]:
    """Return the hash from which on an element is kept, and what it is multiplied with then."""
    name = node.inputs[1]
    known = builder.constants.get(name)
    if name and known is None:
        ratio = tensors[name].astype(DType.FLOAT64)
        return emit("Floor", ratio * float(1 << BITS)).astype(DType.UINT32), (1 / (1 - ratio)).astype(dtype)
    share = 0.5 if known is None else float(known.array)
    least = np.array(min(math.floor(share * (1 << BITS)), 1 << BITS), np.uint32)
    scale = 0 if share >= 1 else 1 / (1 - share)
    return builder.constant(least), builder.constant(np.array(scale, dtype.numpy))


def _compare_places(x: Tensor, key: Tensor, call: Tensor, limit: Tensor) -> Tensor:
    """Return whether the hash of each element's place reaches the limit. Constants are small: a row and a column are a place."""
    shape = x.tensor_type.shape
    sizes = None if shape is None else [dim for dim in shape if isinstance(dim, int)]
    if shape is None or sizes is None or len(sizes) < len(shape):
        elements = emit("Size", x)
        numbers = emit("Range", np.array(0), emit("Div", elements + (ROW - 1), np.array(ROW)), np.array(1)).astype(DType.UINT32)
        rows = emit("Mul", emit("Unsqueeze", numbers, np.array([1])), _array(ROW))
        found = _compare(emit("BitwiseXor", rows, key), ROW, call, limit)
        flat = emit("Slice", emit("Reshape", found, np.array([-1])), np.array([0]), emit("Reshape", elements, np.array([1])))
        return emit("Reshape", flat, emit("Shape", x))
    size = math.prod(sizes)
    if not size:
        return x.builder.constant(np.zeros(sizes, np.bool_))
    first = np.arange(-(-size // ROW), dtype=np.uint32)[:, None] * np.uint32(ROW)
    found = _compare(emit("BitwiseXor", key, first), min(size, ROW), call, limit)
    if size % ROW and size > ROW:
        found = emit("Slice", emit("Reshape", found, np.array([-1])), np.array([0]), np.array([size]))
    return emit("Reshape", found, np.array(sizes, np.int64))


def _compare(rows: Tensor, columns: int, call: Tensor, limit: Tensor) -> Tensor:
    hashes = _hash(emit("BitwiseXor", rows, np.arange(columns, dtype=np.uint32)), call)
    return emit("GreaterOrEqual", emit("BitShift", hashes, _array(32 - BITS), direction="RIGHT"), limit)
