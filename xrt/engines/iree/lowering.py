"""Operators that IREE does not import, decomposed before the export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from xrt.engines.iree.export import INLINE, find_node_constant
from xrt.engines.toolkit.learned_models import find_learned_definition
from xrt.engines.toolkit.node_writer import NodeWriter, rewrite_nodes, write_convolutions_as_products
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import ModelError
from xrt.formats.onnx import expand
from xrt.graph import Attribute, Constant, DType, Function, Node, TensorType, Value
from xrt.operators import is_training
from xrt.passes import drop_dead_nodes, fold_constants, infer_shapes
from xrt.passes.opset_upgrade import upgrade_opset

__all__ = ["OPSET", "REPLACED", "SPELLED", "decompose", "expand_bodies", "is_decomposed", "preprocess", "why_not_sized"]

AXES_AS_INPUT = 18
"""From this opset on reductions take their axes as an input."""
Array = np.ndarray[Any, Any]


def decompose(function: Function) -> Function:
    """Return the Function with the operators of `SPELLED` written out, their results under the same names.

    All inputs of those need known types.
    """
    if not any(node.op in SPELLED for node in function.nodes):
        return function
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        page = IreeWriter(node, function)
        if _write(page):
            nodes += page.nodes
            constants |= page.constants
        else:
            nodes.append(node)
    return drop_dead_nodes(function.replace(nodes=tuple(nodes), constants=constants))


def is_decomposed(node: Node, function: Function) -> bool:
    """Whether the node is written out; its inputs must have known types."""
    return _write(IreeWriter(node, function))


def _write(page: IreeWriter) -> bool:
    """Write the node out on its page; return whether there is a spelling for it."""
    since, spell = SPELLED.get(page.node.op, (0, None))
    result = None if spell is None or page.opset < since else spell(page)
    if result is None:
        return False
    if page.nodes and page.nodes[-1].outputs == (result,):
        page.nodes[-1] = replace(page.nodes[-1], outputs=page.node.outputs[:1])
    else:
        page.op("Identity", result, output=page.node.outputs[0])
    return True


class IreeWriter(NodeWriter):
    """What one node is written out as, with what the spellings here need."""

    __slots__ = ()

    def reduce(self, op_type: str, name: str, *axes: int) -> str:
        """Write a reduction that keeps its axes."""
        if self.opset < AXES_AS_INPUT:
            return self.op(op_type, name, axes=list(axes))
        return self.op(op_type, name, self.constant(np.array(axes, np.int64)))

    def extents(self, name: str) -> tuple[int, ...]:
        return tuple(extent if isinstance(extent, int) else 0 for extent in self.get_type(name).shape or ())

    @property
    def is_float(self) -> bool:
        return self.dtype(self.x).is_float


# ---------------------------------------------------------------------- indices


def _inside(page: IreeWriter, indices: str, extents: Array) -> str:
    """Write indices as such that count from the start and lie inside of the extents, which broadcast to them."""
    kind = page.dtype(indices).numpy
    known = find_node_constant(indices, page.function)
    if known is not None and bool(((known.array >= 0) & (known.array < extents)).all()):
        return indices
    size = page.constant(extents.astype(kind))
    from_start = page.op("Add", indices, size)
    negative = page.op("Less", indices, page.constant(np.array(0, kind)))
    counted = page.op("Where", negative, from_start, indices)
    low = page.op("Max", counted, page.constant(np.array(0, kind)))
    return page.op("Min", low, page.constant((extents - 1).astype(kind)))


def _along_an_axis(page: IreeWriter) -> str:
    axis, extents = page.node.attr("axis", 0), page.extents(page.x)
    indices = _inside(page, page.node.inputs[1], np.array(extents[axis]))
    return page.op(page.node.op_type, page.x, indices, *page.node.inputs[2:], attributes=page.node.attributes)


def _by_tuples(page: IreeWriter) -> str:
    batch, depth = page.node.attr("batch_dims", 0), page.extents(page.node.inputs[1])[-1]
    indices = _inside(page, page.node.inputs[1], np.array(page.extents(page.x)[batch : batch + depth]))
    return page.op(page.node.op_type, page.x, indices, *page.node.inputs[2:], attributes=page.node.attributes)


# ---------------------------------------------------------------------- formulas


def _log_sum_exp(page: IreeWriter) -> str | None:
    """Subtract the largest first, since the exponential of a large number is an infinity."""
    node, rest = page.node, page.node.inputs[1:]
    if not page.is_float or node.attr("noop_with_empty_axes", 0):
        return None
    axes = node.attr("axes")
    along: dict[str, Any] = {} if axes is None else {"axes": tuple(axes)}
    widest = page.op("ReduceMax", page.x, *rest, **along)
    powers, keepdims = page.op("Exp", page.op("Sub", page.x, widest)), node.attr("keepdims", 1)
    summed = (page.constant(np.array(axes)),) if along else rest
    total = page.op("ReduceSum", powers, *summed, keepdims=keepdims)
    aside = widest if keepdims else page.op("ReduceMax", widest, *rest, keepdims=0, **along)
    return page.op("Add", page.op("Log", total), aside)


def _cast_like(page: IreeWriter) -> str:
    return page.op("Cast", page.x, to=page.dtype(page.node.inputs[1]).onnx)


def _pow(page: IreeWriter) -> str | None:
    """Write powers by small whole numbers, and square roots, which is what they mostly are."""
    exponent = find_node_constant(page.node.inputs[1], page.function)
    if exponent is None or exponent.array.size != 1 or len(exponent.array.shape) > len(page.extents(page.x)):
        return None
    value = float(exponent.array.reshape(-1)[0])
    if value == 0.5 and page.is_float:
        return page.op("Sqrt", page.x)
    if value in (1.0, 2.0, 3.0, 4.0):
        return _product(page, int(value))
    return None


def _product(page: IreeWriter, times: int) -> str:
    if times == 4:
        square = page.op("Mul", page.x, page.x)
        return page.op("Mul", square, square)
    return reduce(lambda power, _: page.op("Mul", power, page.x), range(times - 1), page.x)


def _gelu(page: IreeWriter) -> str | None:
    if page.node.attr("approximate", "none") != "tanh":
        return None
    cube = page.op("Mul", page.op("Mul", page.x, page.x), page.x)
    inner = page.op("Add", page.x, page.op("Mul", cube, page.number(0.044715)))
    tanh = page.op("Tanh", page.op("Mul", inner, page.number(np.sqrt(2 / np.pi))))
    return page.op("Mul", page.op("Mul", page.x, page.number(0.5)), page.op("Add", tanh, page.number(1)))


def _lp_normalization(page: IreeWriter) -> str:
    norm = page.reduce("ReduceL1" if page.node.attr("p", 2) == 1 else "ReduceL2", page.x, page.node.attr("axis", -1))
    is_zero = page.op("LessOrEqual", norm, page.number(0))
    return page.op("Div", page.x, page.op("Where", is_zero, page.number(1), norm))


def _swish(page: IreeWriter) -> str:
    scaled = page.op("Mul", page.x, page.number(page.node.attr("alpha", 1.0)))
    return page.op("Mul", page.x, page.op("Sigmoid", scaled))


def _rms_normalization(page: IreeWriter) -> str:
    """Write it in float32 where the numbers have fewer digits, as `stash_type` says by default."""
    kind, rank = page.dtype(page.x), len(page.extents(page.x))
    axes = range(page.node.attr("axis", -1) % rank, rank)
    narrow = kind in (DType.FLOAT16, DType.BFLOAT16)
    wide = page.op("Cast", page.x, to=DType.FLOAT32.onnx) if narrow else page.x
    mean = page.reduce("ReduceMean", page.op("Mul", wide, wide), *axes)
    number = np.float32 if narrow else kind.numpy
    root = page.op("Sqrt", page.op("Add", mean, page.constant(np.array(page.node.attr("epsilon", 1e-5), number))))
    normal = page.op("Div", wide, root)
    return page.op("Mul", page.op("Cast", normal, to=kind.onnx) if narrow else normal, page.node.inputs[1])


def _dropout(page: IreeWriter) -> str | None:
    """Write what it is in inference: nothing."""
    node, function = page.node, page.function
    given = {value.name for value in function.outputs}
    has_mask = any(name and (function.users(name) or name in given) for name in node.outputs[1:])
    return None if has_mask or is_training(node, function) else page.op("Identity", page.x)


def _softsign(page: IreeWriter) -> str:
    return page.op("Div", page.x, page.op("Add", page.op("Abs", page.x), page.number(1)))


# ---------------------------------------------------------------------- edges


def _pad(page: IreeWriter) -> str | None:
    """Write a mirrored or repeated edge as lookups: IREE fails to compile many a mirror, and hangs on repeats."""
    mode, pads = page.node.attr("mode", "constant"), _known(page, 1)
    if mode not in ("reflect", "wrap") or pads is None or (pads < 0).any():
        return None
    extents = page.extents(page.x)
    axes = _known(page, 3) if len(page.node.inputs) > 3 else np.arange(len(extents))
    if 0 in extents or axes is None:
        return None
    name = page.x
    for axis, edges in zip(axes.tolist(), pads.reshape(2, -1).T.tolist(), strict=True):
        if any(edges):
            name = page.op("Gather", name, page.constant(np.pad(np.arange(extents[axis]), edges, mode)), axis=axis)
    return name


def _known(page: IreeWriter, place: int) -> Array | None:
    constant = find_node_constant(page.node.inputs[place], page.function) if place < len(page.node.inputs) else None
    return None if constant is None else constant.array


def _depth_to_space(page: IreeWriter) -> str | None:
    """Write mode CRD as what it is, a transposition: IREE takes the blocks of columns for rows of channels."""
    if page.node.attr("mode", "DCR") != "CRD":
        return None
    size = page.node.attr("blocksize")
    count, channels, height, width = page.extents(page.x)
    split = page.constant(np.array([count, channels // size**2, size, size, height, width]))
    joined = page.constant(np.array([count, channels // size**2, height * size, width * size]))
    return page.op("Reshape", page.op("Transpose", page.op("Reshape", page.x, split), perm=[0, 1, 4, 2, 5, 3]), joined)


def _conv(page: IreeWriter) -> str | None:
    """Write a window that fits once along an axis without the unread elements after it, which IREE's compiler would include."""
    if len(page.node.inputs) < 2 or page.node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    extents = np.array(page.extents(page.x)[2:])
    if not extents.all():
        return None
    fronts, backs = np.array(page.node.attr("pads") or [0] * 2 * len(extents)).reshape(2, -1)
    unread = _unread(page, extents + fronts + backs)
    padding = np.minimum(unread, backs)
    ends = extents - unread + padding
    if not unread.any() or (ends < 1).any():
        return None
    axes = np.arange(2, 2 + len(ends))
    name = page.x if padding.sum() == unread.sum() else page.op("Slice", page.x, *map(page.constant, (axes * 0, ends, axes)))
    pads = Attribute.of("pads", [*fronts.tolist(), *(backs - padding).tolist()])
    others = (attribute for attribute in page.node.attributes if attribute.name != "pads")
    return page.op("Conv", name, *page.node.inputs[1:], attributes=(*others, pads))


def _unread(page: IreeWriter, extents: Array) -> Array:
    """Return how many elements lie behind the only window of each axis; none where there are several."""
    window = np.array(page.extents(page.node.inputs[1])[2:])
    strides, dilations = (np.array(page.node.attr(name) or np.ones_like(window)) for name in ("strides", "dilations"))
    behind = extents - (window - 1) * dilations - 1
    return np.where(behind < strides, behind, 0)


SPELLED: Mapping[str, tuple[int, Callable[[IreeWriter], str | None]]] = {
    "Gather": (12, _along_an_axis),
    "GatherElements": (12, _along_an_axis),
    "ScatterElements": (12, _along_an_axis),
    "GatherND": (12, _by_tuples),
    "ScatterND": (12, _by_tuples),
    "ReduceLogSumExp": (13, _log_sum_exp),
    "CastLike": (15, _cast_like),
    "Pow": (7, _pow),
    "Gelu": (20, _gelu),
    "LpNormalization": (12, _lp_normalization),
    "Dropout": (7, _dropout),
    "RMSNormalization": (23, _rms_normalization),
    "Swish": (24, _swish),
    "Softsign": (7, _softsign),
    "Pad": (13, _pad),
    "DepthToSpace": (11, _depth_to_space),
    "Conv": (11, _conv),
}
"""By operator, from which opset on it can be written out, and how."""
REPLACED = frozenset({"Attention", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})


def expand_bodies(function: Function) -> Function:
    """Return the Function with the operators of `REPLACED` replaced, where ONNX's definition can be had for these types."""
    if not any(node.op in REPLACED for node in function.nodes):
        return function
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        body = _body(_alone(node, function)) if node.op in REPLACED else None
        if body is None:
            nodes.append(node)
        else:
            nodes += _inline_body(body, node, constants)
    return function.replace(nodes=tuple(nodes), constants=constants)


def _alone(node: Node, function: Function) -> Function:
    """Return the node as a Function under names that do not depend on its position."""
    names = {name: f"i{k}" for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    made = {name: f"o{k}" for k, name in enumerate(node.outputs) if name}
    small = {
        new: c for old, new in names.items() if (c := find_node_constant(old, function)) is not None and c.array.size <= INLINE
    }
    given, taken = (tuple(known.get(n, "") for n in of) for known, of in ((made, node.outputs), (names, node.inputs)))
    return Function(
        inputs=tuple(Value(new, function.get_type(old)) for old, new in names.items() if new not in small),
        outputs=tuple(Value(new, function.get_type(old)) for old, new in made.items()),
        nodes=(Node(node.op_type, taken, given, node.attributes, name="node"),),
        constants=small,
        opsets={"": function.opset()},
    )


@lru_cache(maxsize=256)
def _body(function: Function) -> Function | None:
    try:
        body = expand(function)
    except ModelError:
        return None
    return None if body is None or body.opsets.get("") != function.opsets.get("") else body


def _inline_body(body: Function, node: Node, constants: dict[str, Constant]) -> list[Node]:
    """Return the body's nodes under the names of the Function around the node; its own constants are added."""
    names = {f"i{k}": name for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    names |= {f"o{k}": name for k, name in enumerate(node.outputs) if name} | {"": ""}

    def here(name: str) -> str:
        return names.setdefault(name, f"{node.outputs[0]}/body/{name}")

    constants |= {here(name): constant for name, constant in body.constants.items() if name not in names}
    return [
        replace(part, inputs=tuple(map(here, part.inputs)), outputs=tuple(map(here, part.outputs)), name="", control=())
        for part in body.nodes
    ]


OPSET = 18
"""The least opset that is handed over: IREE has no rules for many older forms of operators."""


def preprocess(function: Function) -> Function:
    """Return the Function as it is written: Constant nodes and the Shape of a static value are constants, all types are known,
    what IREE gets wrong is spelled otherwise, and so are convolutions that take it longer than products.

    What depends on constants alone is computed here: of exp(-(1 / c) * c) with a constant c, IREE makes exp(-1), also for c = 0.

    Raises ModelError, which is a ValueError, where an operator of an older opset cannot be brought to `OPSET`.
    Equal Functions, whatever their names, give equal ones; so a saved module fits the Function it is loaded for.
    """
    free = function.replace(
        nodes=tuple(replace(node, control=()) for node in function.nodes)
    )  # nothing here has effects to order
    said = rewrite_nodes(infer_shapes(free), find_learned_definition)
    whole = expand_bodies(infer_shapes(upgrade_opset(infer_shapes(said), OPSET)))
    folded = infer_shapes(fold_constants(infer_shapes(whole), evaluate))
    return infer_shapes(decompose(infer_shapes(write_convolutions_as_products(folded))))


def why_not_sized(function: Function) -> str | None:
    """Return which input or output has a shape that its inputs do not tell; None when they tell all."""
    known: set[object] = set()
    for value in function.inputs:
        known.update(getattr(value.type, "shape", None) or ())
    for value in (*function.inputs, *function.outputs):
        type_ = function.get_type(value.name)
        shape = type_.shape if isinstance(type_, TensorType) else None
        if shape is None or not all(isinstance(dim, int) or (dim is not None and dim in known) for dim in shape):
            return f"the shape of {value.name!r} is not known before the run"
    return None
