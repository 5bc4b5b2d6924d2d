"""Seeded dropout: masks from integer arithmetic in ONNX operators, so that all engines drop the same elements.

The mask of an element depends on a hash of the seed, the call number, the Dropout's index and the element's position. There is
no generator state, so a restored session continues with the same masks. The hash is `lowbias32` from Chris Wellons's hash
prospector, a permutation of 32-bit numbers. Hashes pass through arithmetic operators only, because some engines truncate
integers to 31 bits in operators that move data.
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
HASH_BITS = 23
"""Number of leading bits of a hash that are compared with the ratio. float32 represents numbers of so few bits exactly."""
ROW_LENGTH = 4096
"""Positions of elements are computed as row * ROW_LENGTH + column, so that no constant has an element per position."""
_UINT32 = TensorType(DType.UINT32, ())


def write_dropout(function: Function, seed: int) -> tuple[Function, list[State]]:
    """Replace each Dropout in training mode by a product with a seeded mask; return the Function and the new states.

    Without such a Dropout, return the Function unchanged and no states. Raises OptionError unless the seed is a 32-bit unsigned
    integer, ModelError if the opset cannot be upgraded or a body contains a Dropout in training mode.
    """
    if type(seed) is not int or not 0 <= seed < 1 << 32:
        raise OptionError(f"seed must be an integer from 0 to {(1 << 32) - 1}; got {seed!r}")
    for node in function.nodes:
        if any(_has_dropout(body, function.constants) for body in node.bodies):
            raise ModelError(
                f"node {node.name!r} ({node.op}) has a Dropout in training form in its body, and masks are made outside of "
                "bodies alone; give the Dropout in its inference form, or unroll the loop"
            )
    # Keep the opset and the inputs of models without dropout.
    if not _has_dropout(function, {}):
        return function, []
    function = infer_shapes(upgrade_opset(infer_shapes(function), OPSET))
    builder, tensors = continue_function(function)
    builder.nodes = []
    dropout_indices = itertools.count()
    with builder:
        seed_input, calls = builder.input(SEED, _UINT32), builder.input(CALLS, _UINT32)
        with builder.scope("dropout"):
            seed_hash = _emit_hash(emit("BitwiseXor", seed_input, _make_vector(0)))
            call = _emit_hash(emit("BitwiseXor", seed_hash, calls))
        for node in function.nodes:
            if _is_dropping(node, function, {}):
                _record_dropout(builder, node, tensors, call, next(dropout_indices))
            else:
                builder.nodes.append(node)
        for value in function.outputs:
            builder.output(tensors[value.name])
        # The seed does not change.
        builder.output(emit("BitwiseXor", seed_input, np.array(0, np.uint32)), f"{SEED}_next")
        builder.output(calls + np.array(1, np.uint32), f"{CALLS}_next")
    built = builder.function().replace(aliases=function.aliases, doc=function.doc, metadata=function.metadata)
    return built, [State(SEED, f"{SEED}_next", seed), State(CALLS, f"{CALLS}_next")]


def _has_dropout(function: Function, outer: Mapping[str, Constant]) -> bool:
    """Whether a Function or its bodies contain a Dropout in training mode; ``outer`` has constants of enclosing Functions."""
    constants = {**outer, **function.constants}
    for node in function.nodes:
        if _is_dropping(node, function, outer) or any(_has_dropout(body, constants) for body in node.bodies):
            return True
    return False


def _is_dropping(node: Node, function: Function, outer: Mapping[str, Constant]) -> bool:
    """Whether a node is a Dropout in training mode. The flag may be a constant of an enclosing Function, in ``outer``."""
    if node.op != "Dropout" or not is_training(node, function):
        return False
    flag = outer.get(node.inputs[2]) if len(node.inputs) > 2 else None
    return flag is None or bool(flag.array)


def _make_vector(value: int) -> np.ndarray[Any, Any]:
    """Make a uint32 array of one element. Unlike for a scalar, NumPy does not warn when its arithmetic overflows."""
    return np.array([value], np.uint32)


def _emit_hash(x: Tensor, key: Tensor | None = None) -> Tensor:
    """Emit the lowbias32 hash of uint32 numbers. ``key`` is combined with the numbers between the two rounds of the hash."""
    x = emit("Mul", _emit_mix(x, 16), _make_vector(0x7FEB352D))
    if key is not None:
        x = emit("BitwiseXor", x, key)
    return _emit_mix(emit("Mul", _emit_mix(x, 15), _make_vector(0x846CA68B)), 16)


def _emit_mix(x: Tensor, count: int) -> Tensor:
    return emit("BitwiseXor", x, emit("BitShift", x, _make_vector(count), direction="RIGHT"))


def _record_dropout(builder: Builder, node: Node, tensors: Mapping[str, Tensor], call: Tensor, dropout_index: int) -> None:
    """Record a Dropout as a product with a factor: 0 for dropped elements and 1 / (1 - ratio) for the others."""
    x = tensors[node.inputs[0]]
    with builder.scope(f"{node.name}/mask"), builder.device(node.device):
        # A constant flag is true, because `write_dropout` does not replace a Dropout in inference mode.
        flag = None if node.inputs[2] in builder.constants else tensors[node.inputs[2]]
        limit, scale = _emit_threshold(builder, node, tensors, x.dtype)
        key = _emit_hash(emit("BitwiseXor", call, _make_vector(dropout_index)))
        keep = _emit_keep_mask(x, key, call, limit)
        # The flag is known only at run time.
        if flag is not None:
            keep = emit("Or", keep, emit("Not", flag))
            scale = emit("Where", flag, scale, np.array(1, x.dtype.numpy))
        factor = emit("Where", keep, scale, np.array(0, x.dtype.numpy))
    builder.record(replace(node, op_type="Mul", inputs=(x.name, factor.name), outputs=node.outputs[:1], attributes=()), [x.type])
    if len(node.outputs) > 1 and node.outputs[1]:
        mask = tensors[node.outputs[1]]
        builder.record(Node("Identity", (keep.name,), (mask.name,)), [mask.type])


def _emit_threshold(builder: Builder, node: Node, tensors: Mapping[str, Tensor], dtype: DType) -> tuple[Tensor, Tensor]:
    """Emit the uint32 threshold below which the hash of an element drops it, and the scale 1 / (1 - ratio)."""
    name = node.inputs[1]
    constant = builder.constants.get(name)
    if name and constant is None:
        ratio = tensors[name].astype(DType.FLOAT64)
        return emit("Floor", ratio * float(1 << HASH_BITS)).astype(DType.UINT32), (1 / (1 - ratio)).astype(dtype)
    static_ratio = 0.5 if constant is None else float(constant.array)
    threshold = np.array(min(math.floor(static_ratio * (1 << HASH_BITS)), 1 << HASH_BITS), np.uint32)
    # At ratio 1 everything is dropped; avoid a division by zero.
    scale = 0 if static_ratio >= 1 else 1 / (1 - static_ratio)
    return builder.constant(threshold), builder.constant(np.array(scale, dtype.numpy))


def _emit_keep_mask(x: Tensor, key: Tensor, call: Tensor, limit: Tensor) -> Tensor:
    """Emit the mask of ``x``: an element is kept (true) if the hash of its position is at least the threshold ``limit``."""
    shape = x.tensor_type.shape
    sizes = None if shape is None else [dim for dim in shape if isinstance(dim, int)]
    # For a dynamic shape, positions are numbered at run time, in whole rows.
    if shape is None or sizes is None or len(sizes) < len(shape):
        elements = emit("Size", x)
        row_count = emit("Div", elements + (ROW_LENGTH - 1), np.array(ROW_LENGTH))
        row_numbers = emit("Range", np.array(0), row_count, np.array(1)).astype(DType.UINT32)
        row_starts = emit("Mul", emit("Unsqueeze", row_numbers, np.array([1])), _make_vector(ROW_LENGTH))
        mask = _emit_comparison(emit("BitwiseXor", row_starts, key), ROW_LENGTH, call, limit)
        flat = emit("Slice", emit("Reshape", mask, np.array([-1])), np.array([0]), emit("Reshape", elements, np.array([1])))
        return emit("Reshape", flat, emit("Shape", x))
    size = math.prod(sizes)
    if not size:
        return x.builder.constant(np.zeros(sizes, np.bool_))
    static_starts = np.arange(0, size, ROW_LENGTH, dtype=np.uint32)[:, None]
    mask = _emit_comparison(emit("BitwiseXor", key, static_starts), min(size, ROW_LENGTH), call, limit)
    if size % ROW_LENGTH and size > ROW_LENGTH:
        mask = emit("Slice", emit("Reshape", mask, np.array([-1])), np.array([0]), np.array([size]))
    return emit("Reshape", mask, np.array(sizes, np.int64))


def _emit_comparison(rows: Tensor, columns: int, call: Tensor, limit: Tensor) -> Tensor:
    """Hash the start of each row combined with each column, and compare the leading bits of the hashes with the threshold."""
    hashes = _emit_hash(emit("BitwiseXor", rows, np.arange(columns, dtype=np.uint32)), call)
    return emit("GreaterOrEqual", emit("BitShift", hashes, _make_vector(32 - HASH_BITS), direction="RIGHT"), limit)
