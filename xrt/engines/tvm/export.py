"""Import a Function as a Relax module with TVM's ONNX importer.

The importer stacks the inputs of Sum, Mean, Max and Min and reduces the stack; ignores IsInf's attributes for the sign;
lacks a power of mixed types; has a softplus that overflows; and compares booleans as floats, which LLVM rejects. It would
recompute values that depend only on weights in every run: BatchNormalization's factors and Gemm's transposed weight.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.relax.frontend.onnx import onnx_frontend

from xrt.engines.tvm.relax_rewrites import rewrite
from xrt.engines.tvm.tables import LOWERED
from xrt.forking import renew_after_fork
from xrt.formats.onnx import lowest_model, upgrade_opset
from xrt.graph import Constant, Dim, DType, Function, Node, TensorType, Value
from xrt.operators import NodeWriter, rewrite_nodes
from xrt.operators.decompositions import write_decomposition
from xrt.passes import drop_dead_nodes, fold_constants

log = logging.getLogger("xrt.engines.tvm")

INLINE = 64
"""Constants of at most this many elements stay constants: shapes, axes, scales, which the importer reads while it imports."""

compiler_lock = renew_after_fork(threading.RLock())
"""TVM's builders share a stack that is not thread-safe: one import or compile at a time."""


@dataclass(frozen=True, slots=True)
class ImportedModule:
    """A Relax module whose ``main`` takes the Function's inputs and then its weights."""

    module: IRModule
    weights: tuple[Constant, ...]
    results: tuple[TensorType, ...]
    """Result types that the importer infers; a shape is None if it is unknown."""


def import_function(function: Function, polynomials: bool = True) -> ImportedModule:
    """Import a Function whose inputs have shapes of numbers and symbolic dims.

    Constant nodes and the Shape of a static value become constants first, because few operators of the importer support its
    special kinds of value for them. Operators that it imports wrong are decomposed. Weights (constants of more than `INLINE`
    elements) become parameters, so that they are not copied through protobuf and do not affect the compile time. With
    ``polynomials`` exponentials are approximated, for CPUs. Errors of TVM's importer pass through.
    """
    function = decompose(fold_constants(function, _refuse_evaluation))
    weights = {name: c for name, c in function.constants.items() if c.array.size > INLINE}
    lifted = function.replace(
        inputs=(*function.inputs, *(Value(name, c.type) for name, c in weights.items())),
        constants={name: c for name, c in function.constants.items() if name not in weights},
    )
    model = lowest_model(lifted)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    importer = onnx_frontend.ONNXGraphImporter(_list_shapes(lifted), {}, sanitize=False)
    with compiler_lock, _log_output(importer):
        module = rewrite(importer.from_onnx(model.graph, opset), polynomials)
    return ImportedModule(module, tuple(weights.values()), _list_result_types(module))


def _refuse_evaluation(function: Function, inputs: list[Any]) -> NoReturn:
    raise NotImplementedError("only nodes that need no computation are folded")


def _list_shapes(function: Function) -> dict[str, list[Any]]:
    """Shapes by input, with a variable for each symbolic dim.

    They are passed separately, because the importer treats an extent of 0 in the model as unknown, and parses sums and products
    in names of dims.
    """
    variables: dict[Dim, Any] = {}

    def find(dim: Dim) -> Any:
        return dim if isinstance(dim, int) else variables.setdefault(dim, tirx.Var(f"size_{len(variables)}", "int64"))

    return {v.name: list(map(find, v.type.shape or ())) for v in function.inputs if isinstance(v.type, TensorType)}


@contextmanager
def _log_output(importer: onnx_frontend.ONNXGraphImporter) -> Iterator[None]:
    """Log the importer's output instead of printing it; if it raises, end the block that it leaves open."""
    onnx_frontend.print = lambda *words: log.debug("importer: %s", words)
    try:
        yield
    except Exception:
        with suppress(Exception):
            importer.bb._end_block()  # an open block is a warning on stderr when the builder goes
        raise
    finally:
        del onnx_frontend.print


def _list_result_types(module: IRModule) -> tuple[TensorType, ...]:
    returned = module["main"].ret_ty
    fields = returned.fields if hasattr(returned, "fields") else (returned,)
    return tuple(tensor_type(field) for field in fields)


def tensor_type(type_: Any) -> TensorType:
    """Convert a Relax type; raises TypeError if it is not a tensor."""
    if not isinstance(type_, relax.TensorType):
        raise TypeError(f"the result is {type_}, which is not a tensor")
    dtype = DType.parse(str(type_.dtype).replace("_", ""))
    if not isinstance(type_.shape, relax.ShapeExpr):
        return TensorType(dtype)
    return TensorType(dtype, tuple(int(d) if hasattr(d, "value") else None for d in type_.shape))


# ---------------------------------------------------------------------- operators that the importer gets wrong

OLDEST = 9
"""The first opset with Where and IsNaN, and with broadcasting everywhere."""

FARTHEST = 16384
"""Limit on the corner coordinates of RoiAlign's boxes; no image is as large."""


def decompose(function: Function) -> Function:
    """Decompose the operators of `LOWERED`, and rewrite the forms of others that the importer gets wrong."""
    if not any(node.op in LOWERED or node.op in _REWRITTEN for node in function.nodes):
        return function
    if function.opset() < OLDEST:
        if not any(_compares_booleans(node, function) for node in function.nodes):
            return function
        function = upgrade_opset(function, OLDEST)
    return drop_dead_nodes(rewrite_nodes(function, _write))


def _compares_booleans(node: Node, function: Function) -> bool:
    type_ = function.get_type(node.inputs[0]) if node.op == "Equal" else None
    return isinstance(type_, TensorType) and type_.dtype is DType.BOOL


def _write(w: NodeWriter) -> str | Sequence[str] | None:
    if w.node.op in LOWERED:
        # The importer supports LayerNormalization only without its statistics.
        return None if w.node.op == "LayerNormalization" and not any(w.node.outputs[1:]) else write_decomposition(w)
    rule = _REWRITTEN.get(w.node.op)
    return None if rule is None else rule(w)


def _is_inf(w: NodeWriter) -> str:
    result, zero = w.op("IsInf", w.x), w.number(0)
    if not w.attr("detect_positive", 1):
        result = w.op("And", result, w.op("Less", w.x, zero))
    if not w.attr("detect_negative", 1):
        result = w.op("And", result, w.op("Greater", w.x, zero))
    return result


def _pow(w: NodeWriter) -> str:
    base, exponent = w.node.inputs
    return w.op("Pow", base, w.cast(exponent, w.dtype(base)))


def _batch_normalization(w: NodeWriter) -> str | None:
    """Replace the normalization by one product and one sum with factors computed at compile time."""
    weights = [weight.astype(np.float64) for place in range(1, 5) if (weight := w.find_input(place)) is not None]
    if len(weights) < 4 or len(w.node.outputs) > 1 or not w.dtype(w.x).is_float:
        return None
    scale, bias, mean, variance = weights
    factor = scale / np.sqrt(variance + w.attr("epsilon", 1e-5))
    return w.op("Add", w.op("Mul", w.x, _write_channels(w, factor)), _write_channels(w, bias - mean * factor))


def _write_channels(w: NodeWriter, values: np.ndarray[Any, Any]) -> str:
    """Write one value per channel as a constant of the input's type."""
    return w.constant(values.reshape((-1, *[1] * (w.rank(w.x) - 2))), w.dtype(w.x).numpy)


def _gemm(w: NodeWriter) -> str | None:
    """Transpose a constant operand at compile time."""
    weights = w.find_input(1)
    if weights is None or not w.attr("transB", 0):
        return None
    transposed = w.constant(np.ascontiguousarray(weights.T))
    attributes = tuple(a for a in w.node.attributes if a.name != "transB")
    return w.op("Gemm", w.x, transposed, *w.node.inputs[2:], attributes=attributes)


def _roi_align(w: NodeWriter) -> str:
    """Clamp the batch indices to the batch and make the boxes finite: otherwise TVM reads out of bounds."""
    boxes, places = w.node.inputs[1:3]
    finite = w.op("Clip", boxes, w.number(-FARTHEST), w.number(FARTHEST))
    return w.op("RoiAlign", w.x, finite, _clamp_to_batch(w, places), attributes=w.node.attributes)


def _max_roi_pool(w: NodeWriter) -> str:
    """Clamp batch indices as for RoiAlign; here they are the first number of each box."""
    boxes = w.node.inputs[1]
    first, second, last, axis = (w.constant(np.array([k])) for k in (0, 1, 5, 1))
    places = _clamp_to_batch(w, w.op("Slice", boxes, first, second, axis))
    clamped = w.op("Concat", places, w.op("Slice", boxes, second, last, axis), axis=1)
    return w.op("MaxRoiPool", w.x, clamped, attributes=w.node.attributes)


def _clamp_to_batch(w: NodeWriter, places: str) -> str:
    type_, kind = w.function.get_type(w.x), w.dtype(places if w.node.op == "RoiAlign" else w.x).numpy
    extent = type_.shape[0] if isinstance(type_, TensorType) and type_.shape else 1
    batch = extent if isinstance(extent, int) else 1
    return w.op("Clip", places, w.constant(np.array(0, kind)), w.constant(np.array(batch - 1, kind)))


_REWRITTEN: Mapping[str, Callable[[NodeWriter], str | None]] = {
    "IsInf": _is_inf,
    "Pow": _pow,
    "BatchNormalization": _batch_normalization,
    "Gemm": _gemm,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
}
