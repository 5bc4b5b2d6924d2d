"""Seeded dropout: masks from integer arithmetic in ONNX operators, so that all engines drop the same elements.

The mask of an element is a hash of the seed, the call number, the Dropout and the element's position. There is no generator
state, so a restored session continues with the same masks. The hash is `lowbias32` from Chris Wellons's hash prospector, a
permutation of 32 bits, keyed by the call and the Dropout. Hashes pass through arithmetic only, never through operators that
move data, because some engines move integers in 31 bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.builder import Builder
from xrt.builder.record_op import emit
from xrt.errors import ModelError, OptionError
from xrt.formats.onnx import upgrade_opset
from xrt.graph import Constant, DType, Function, Node, State, TensorType
from xrt.operators import is_training
from xrt.passes import infer_shapes
from xrt.passes.gradient.preparation import OPSET, continue_function

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


SEED, CALLS = "dropout.seed", "dropout.calls"
"""Names of the two states: the user's seed, and the number of calls so far."""

BITS = 23
"""Number of leading bits of a hash that are compared with the ratio; few enough to be exact in float32."""

ROW = 4096
"""Length of the rows into which elements are numbered: position = row * ROW + column."""

_UINT32 = TensorType(DType.UINT32, ())


def write_dropout(function: Function, seed: int) -> tuple[Function, list[State]]:
    """Replace each Dropout in training mode by a seeded mask; return the Function and the new states.

    Without such a Dropout, return the Function unchanged and no states. Raises OptionError unless the seed is a 32-bit unsigned
    integer, ModelError if the opset cannot be upgraded or a body contains a Dropout in training mode.
    """
    if type(seed) is not int or not 0 <= seed < 1 << 32:
        raise OptionError(f"seed must be an integer from 0 to {(1 << 32) - 1}; got {seed!r}")
    if node := next((node for node in function.nodes for body in node.bodies if _holds_dropout(body, function.constants)), None):
        raise ModelError(
            f"node {node.name!r} ({node.op}) has a Dropout in training form in its body, and masks are made outside of bodies "
            "alone; give the Dropout in its inference form, or unroll the loop"
        )
    # Keep the opset and the inputs of models without dropout.
    if not _holds_dropout(function, {}):
        return function, []
    function = infer_shapes(upgrade_opset(infer_shapes(function), OPSET))
    builder, tensors = continue_function(function)
    builder.nodes = []
    dropout_indices = itertools.count()
    with builder:
        start, calls = builder.input(SEED, _UINT32), builder.input(CALLS, _UINT32)
        with builder.scope("dropout"):
            call = _hash(emit("BitwiseXor", _hash(emit("BitwiseXor", start, _make_vector(0))), calls))
        for node in function.nodes:
            if _drops(node, function, {}):
                _record_mask(builder, node, tensors, call, next(dropout_indices))
            else:
                builder.nodes.append(node)
        for value in function.outputs:
            builder.output(tensors[value.name])
        builder.output(emit("BitwiseXor", start, np.array(0, np.uint32)), f"{SEED}_next")
        builder.output(calls + np.array(1, np.uint32), f"{CALLS}_next")
    built = builder.function().replace(aliases=function.aliases, doc=function.doc, metadata=function.metadata)
    return built, [State(SEED, f"{SEED}_next", seed), State(CALLS, f"{CALLS}_next")]


def _holds_dropout(function: Function, outer: Mapping[str, Constant]) -> bool:
    """Whether a Function or its bodies contain a Dropout in training mode; ``outer`` has constants of enclosing Functions."""
    constants = {**outer, **function.constants}
    return any(_drops(n, function, outer) or any(_holds_dropout(body, constants) for body in n.bodies) for n in function.nodes)


def _drops(node: Node, function: Function, outer: Mapping[str, Constant]) -> bool:
    if node.op != "Dropout" or not is_training(node, function):
        return False
    flag = outer.get(node.inputs[2]) if len(node.inputs) > 2 else None
    return flag is None or bool(flag.array)


# ---------------------------------------------------------------------- masks


def _make_vector(value: int) -> np.ndarray[Any, Any]:
    """Make a uint32 array of one element: NumPy warns when scalars overflow, but not when arrays do."""
    return np.array([value], np.uint32)


def _hash(x: Tensor, key: Tensor | None = None) -> Tensor:
    """Emit the lowbias32 hash of uint32 numbers; ``key`` is mixed in between its two rounds."""
    x = emit("Mul", _mix(x, 16), _make_vector(0x7FEB352D))
    if key is not None:
        x = emit("BitwiseXor", x, key)
    return _mix(emit("Mul", _mix(x, 15), _make_vector(0x846CA68B)), 16)


def _mix(x: Tensor, count: int) -> Tensor:
    return emit("BitwiseXor", x, emit("BitShift", x, _make_vector(count), direction="RIGHT"))


def _record_mask(builder: Builder, node: Node, tensors: Mapping[str, Tensor], call: Tensor, dropout_index: int) -> None:
    """Record a Dropout as x * m, where m is 0 for dropped elements and 1 / (1 - ratio) for others."""
    x = tensors[node.inputs[0]]
    with builder.scope(f"{node.name}/mask"), builder.device(node.device):
        # A constant flag is true here: a Dropout in inference mode is not recorded.
        flag = None if node.inputs[2] in builder.constants else tensors[node.inputs[2]]
        limit, scale = _read_ratio(builder, node, tensors, x.dtype)
        key = _hash(emit("BitwiseXor", call, _make_vector(dropout_index)))
        keep = _make_keep_mask(x, key, call, limit)
        if flag is not None:  # known only at run time
            keep = emit("Or", keep, emit("Not", flag))
            scale = emit("Where", flag, scale, np.array(1, x.dtype.numpy))
        factor = emit("Where", keep, scale, np.array(0, x.dtype.numpy))
    builder.record(replace(node, op_type="Mul", inputs=(x.name, factor.name), outputs=node.outputs[:1], attributes=()), [x.type])
    if len(node.outputs) > 1 and node.outputs[1]:
        mask = tensors[node.outputs[1]]
        builder.record(Node("Identity", (keep.name,), (mask.name,)), [mask.type])


def _read_ratio(builder: Builder, node: Node, tensors: Mapping[str, Tensor], dtype: DType) -> tuple[Tensor, Tensor]:
    """Emit the uint32 threshold of the ratio (elements with a smaller hash are dropped), and the scale 1 / (1 - ratio)."""
    name = node.inputs[1]
    constant = builder.constants.get(name)
    if name and constant is None:
        ratio = tensors[name].astype(DType.FLOAT64)
        return emit("Floor", ratio * float(1 << BITS)).astype(DType.UINT32), (1 / (1 - ratio)).astype(dtype)
    static_ratio = 0.5 if constant is None else float(constant.array)
    threshold = np.array(min(math.floor(static_ratio * (1 << BITS)), 1 << BITS), np.uint32)
    # At ratio 1 everything is dropped; avoid a division by zero.
    scale = 0 if static_ratio >= 1 else 1 / (1 - static_ratio)
    return builder.constant(threshold), builder.constant(np.array(scale, dtype.numpy))


def _make_keep_mask(x: Tensor, key: Tensor, call: Tensor, limit: Tensor) -> Tensor:
    """Emit the mask of ``x``: true, so that the element is kept, if the hash of its position reaches the threshold ``limit``.

    A position is the sum of a row's start and a column, so the constants have `ROW` elements instead of one per element.
    """
    shape = x.tensor_type.shape
    sizes = None if shape is None else [dim for dim in shape if isinstance(dim, int)]
    # Dynamic shape: number the positions at run time, rounded up to whole rows.
    if shape is None or sizes is None or len(sizes) < len(shape):
        elements = emit("Size", x)
        numbers = emit("Range", np.array(0), emit("Div", elements + (ROW - 1), np.array(ROW)), np.array(1)).astype(DType.UINT32)
        rows = emit("Mul", emit("Unsqueeze", numbers, np.array([1])), _make_vector(ROW))
        mask = _compare_hashes(emit("BitwiseXor", rows, key), ROW, call, limit)
        flat = emit("Slice", emit("Reshape", mask, np.array([-1])), np.array([0]), emit("Reshape", elements, np.array([1])))
        return emit("Reshape", flat, emit("Shape", x))
    size = math.prod(sizes)
    if not size:
        return x.builder.constant(np.zeros(sizes, np.bool_))
    first = np.arange(-(-size // ROW), dtype=np.uint32)[:, None] * np.uint32(ROW)
    mask = _compare_hashes(emit("BitwiseXor", key, first), min(size, ROW), call, limit)
    if size % ROW and size > ROW:
        mask = emit("Slice", emit("Reshape", mask, np.array([-1])), np.array([0]), np.array([size]))
    return emit("Reshape", mask, np.array(sizes, np.int64))


def _compare_hashes(rows: Tensor, columns: int, call: Tensor, limit: Tensor) -> Tensor:
    hashes = _hash(emit("BitwiseXor", rows, np.arange(columns, dtype=np.uint32)), call)
    return emit("GreaterOrEqual", emit("BitShift", hashes, _make_vector(32 - BITS), direction="RIGHT"), limit)
