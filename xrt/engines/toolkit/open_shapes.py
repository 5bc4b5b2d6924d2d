"""Whether a node with symbolic dims means the same computation at every size, so that one program can serve them all.

Compilers that know nothing of two extents take them for equal: where one of them is 1 in a run, their code reads other memory
than its own. So what is taken here has only dims that are numbers or named dims of the node's own inputs, and where operands
meet, their dims are equal by number or by name, or 1 by number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

from xrt.engines.toolkit.node_query import NodeQuery
from xrt.graph import Constant, Dim, Function, Node, Shape, TensorType, Value
from xrt.passes import find_constant, infer_shapes

__all__ = ["ELEMENTWISE", "EVERY", "has_symbolic_dims", "why_not_at_every_size"]

SMALL = 64
"""Elements up to which a constant is an axis, a shape or a scale, rather than a weight."""

_ELEMENTWISE = (
    "Abs Add And Cast CastLike Ceil Clip Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity "
    "LeakyRelu Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow PRelu Reciprocal Relu Round Selu Sigmoid Sign Softplus "
    "Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu Where Xor"
)
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operators of one element at a time, whose operands broadcast."""


def has_symbolic_dims(node: Node, function: Function) -> bool:
    """Whether a value that the node reads has an extent that is no number."""
    types = [function.get_type(name) for name in node.uses]
    return any(isinstance(type_, TensorType) and not type_.is_static for type_ in types)


def why_not_at_every_size(node: Node, function: Function, taken: Collection[str]) -> str | None:
    """Return why a node with symbolic dims is none of the ``taken`` operators, or not the same at every size; None if it is."""
    if node.op not in taken or not (node.op_type in ELEMENTWISE or node.op_type in _RULES):
        return f"{node.op} is not computed with symbolic dims"
    given = [_shape(name, function) for name in node.inputs]
    made = [_shape(name, function) for name in node.outputs if name]
    known = {dim for shape in given for dim in shape or () if isinstance(dim, str)}
    for shape in (*given, *made):
        if shape is None or any(not isinstance(dim, int) and dim not in known for dim in shape):
            return f"an extent of this {node.op} is known only when it is computed"
    if made != list(_infer(NodeQuery.of(node, function, function.opset(), _find_small, [name for name in node.outputs if name]))):
        return f"the extents that the model declares for this {node.op} do not follow from those of its inputs"
    shapes = [shape or () for shape in given]
    rule = _RULES.get(node.op_type, _broadcasts)
    try:
        fits = rule(node, function, shapes)
    except (IndexError, ValueError, TypeError):  # a node that lacks what its operator needs
        fits = False
    return None if fits else f"symbolic dims decide what this {node.op} computes, or it is not known that they are equal"


@lru_cache(maxsize=4096)
def _infer(query: NodeQuery) -> tuple[Shape | None, ...]:
    """Return the shapes of the outputs as they follow from the inputs alone."""
    alone = query.to_function()
    try:
        found = infer_shapes(alone.replace(outputs=tuple(Value(value.name) for value in alone.outputs)))
    except ValueError:  # a node that breaks a rule
        return ()
    return tuple(_shape(value.name, found) for value in alone.outputs)


def _find_small(name: str, function: Function) -> Constant | None:
    """Return a constant that may be axes or a shape; None for other values."""
    producer = function.producer(name)
    constant = function.constants.get(name) if producer is None else find_constant(producer, function)
    return constant if constant is not None and constant.array.size <= SMALL else None


def _shape(name: str, function: Function) -> Shape | None:
    """Return the shape of a value, () for none; None where the rank is not known."""
    if not name:
        return ()
    type_ = function.get_type(name)
    return type_.shape if isinstance(type_, TensorType) else None


def _constant(node: Node, place: int, function: Function) -> Constant | None:
    return _find_small(node.inputs[place], function) if place < len(node.inputs) and node.inputs[place] else None


def _broadcasts(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether extents that meet are equal by number or by name, or 1 by number."""
    rank = max(len(shape) for shape in shapes)
    filled = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return all(len({dim for dim in dims if dim != 1}) <= 1 for dims in zip(*filled, strict=True))


def _alone(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether all inputs but the first are of fixed shape."""
    return all(isinstance(dim, int) for shape in shapes[1:] for dim in shape)


def _products(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether matrices, or stacks of as many, are multiplied, or a stack by one."""
    a, b = shapes[:2]
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return False
    return a[:-2] == b[:-2] or len(b) == 2


def _gemm(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    (m, inner), (other, n) = (
        _turned(shape, node.attr(name, 0)) for shape, name in zip(shapes, ("transA", "transB"), strict=False)
    )
    return inner == other and (len(shapes) < 3 or _broadcasts(node, function, ((m, n), shapes[2])))


def _turned(shape: Shape, turn: int) -> tuple[Dim, Dim]:
    rows, columns = shape
    return (columns, rows) if turn else (rows, columns)


def _concat(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    axis = node.attr("axis", 1)
    axis += len(shapes[0]) * (axis < 0)
    if not all(isinstance(shape[axis], int) for shape in shapes):
        return False
    return len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1


def _reduces(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the axes are known."""
    return len(node.inputs) < 2 or not node.inputs[1] or _constant(node, 1, function) is not None


def _reshapes(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the shape is a constant, and every symbolic dim keeps its place in the order of dims."""
    if _constant(node, 1, function) is None:
        return False
    result = _shape(node.outputs[0], function) or ()
    return [dim for dim in shapes[0] if isinstance(dim, str)] == [dim for dim in result if isinstance(dim, str)]


def _normalizes_last(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    axis = node.attr("axis", -1)
    return _alone(node, function, shapes) and all(isinstance(dim, int) for dim in shapes[0][axis:])


def _looks_up(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    return isinstance(shapes[0][node.attr("axis", 0)], int)


def _slices(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether starts, ends and axes are known, and the axes are of known extent."""
    starts, axes = _constant(node, 1, function), _constant(node, 3, function)
    if starts is None or any(
        _constant(node, place, function) is None for place in range(2, len(node.inputs)) if node.inputs[place]
    ):
        return False
    along = range(starts.array.size) if axes is None else axes.array.tolist()
    return all(isinstance(shapes[0][axis], int) for axis in along)


def _splits(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    is_known = len(node.inputs) < 2 or not node.inputs[1] or _constant(node, 1, function) is not None
    return is_known and isinstance(shapes[0][node.attr("axis", 0)], int)


def _of_batches(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether only the number of images is symbolic."""
    return _alone(node, function, shapes) and all(isinstance(dim, int) for dim in shapes[0][1:])


def _along_one_axis(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    return function.opset() >= 13  # before, axes are flattened together


def _always(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    return True


_RULES: Mapping[str, Callable[[Node, Function, Sequence[Shape]], bool]] = {
    "Concat": _concat,
    "Flatten": _always,
    "Gather": _looks_up,
    "Gemm": _gemm,
    "LayerNormalization": _normalizes_last,
    "RMSNormalization": _normalizes_last,
    "MatMul": _products,
    "Reshape": _reshapes,
    "Slice": _slices,
    "Split": _splits,
    "Transpose": _always,
    **dict.fromkeys(("LogSoftmax", "Softmax"), _along_one_axis),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _reduces),
    **{f"Reduce{kind}": _reduces for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
    **dict.fromkeys(("AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"), _of_batches),
}
"""Other operators, each with when it is the same at every size."""
EVERY = ELEMENTWISE.union(_RULES)
"""All operators that may be the same at every size."""
