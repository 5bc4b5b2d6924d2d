"""Import a Function as a Relax module with TVM's ONNX importer.

The importer has these defects, so `decompose` rewrites the nodes before the import:

- Sum, Mean, Max and Min copy their inputs into one stacked tensor and reduce that, which is slow.
- Pow calls the C library for each element, and Softplus overflows.
- Equal compares booleans as floats, which LLVM rejects.
- Values that depend only on weights, such as Gemm's transposed weight, are recomputed in every run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.relax.frontend.onnx import onnx_frontend

from xrt.engines.toolkit.support import MAX_CONSTANT_ELEMENTS
from xrt.engines.tvm.relax_rewrites import rewrite_calls
from xrt.engines.tvm.tables import LOWERED
from xrt.forking import renew_after_fork
from xrt.formats.onnx import to_lowest_model, upgrade_opset
from xrt.graph import Constant, Dim, DType, Function, Node, TensorType, Value
from xrt.operators import NodeWriter, rewrite_nodes
from xrt.operators.decompositions import write_decomposition
from xrt.passes import drop_dead_nodes, fold_constants

log = logging.getLogger("xrt.engines.tvm")
compiler_lock = renew_after_fork(threading.RLock())
"""TVM's builders share a stack that is not thread-safe: one import or compile at a time."""


@dataclass(frozen=True, slots=True)
class ImportedModule:
    """A Relax module with one function, ``main``. Its parameters are the Function's inputs, then its weights."""

    module: IRModule
    weights: tuple[Constant, ...]
    results: tuple[TensorType, ...]
    """Result types that the importer inferred. A shape of unknown rank is None."""


def import_function(function: Function, polynomials: bool = True) -> ImportedModule:
    """Import a Function whose inputs have known ranks. Errors of TVM's importer are not caught.

    - Constant nodes, and Shape of a static value, are folded first, because few operators of the importer accept their results.
    - Operators that TVM imports wrong are decomposed.
    - Weights (constants that the importer need not read) become parameters, so that they are not copied through
      protobuf and do not affect the compile time.
    - ``polynomials`` replaces exponentials by polynomials, which are faster on CPUs (`POLYNOMIALS`).
    """
    function = decompose(fold_constants(function))
    weights = {name: c for name, c in function.constants.items() if c.array.size > MAX_CONSTANT_ELEMENTS}
    # A model in which the weights are inputs, after those of the Function.
    lifted = function.replace(
        inputs=(*function.inputs, *(Value(name, c.type) for name, c in weights.items())),
        constants={name: c for name, c in function.constants.items() if name not in weights},
    )
    model = to_lowest_model(lifted)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    importer = onnx_frontend.ONNXGraphImporter(_list_shapes(lifted), {}, sanitize=False)
    with compiler_lock, _log_output(importer):
        module = rewrite_calls(importer.from_onnx(model.graph, opset), polynomials)
    returned = module["main"].ret_ty
    result_types = returned.fields if hasattr(returned, "fields") else (returned,)
    return ImportedModule(module, tuple(weights.values()), tuple(map(convert_type, result_types)))


def _list_shapes(function: Function) -> dict[str, list[Any]]:
    """Map the name of each input to its shape, with one TVM variable per symbolic dim.

    The importer must not read the shapes from the model: it treats a dim of 0 as unknown, and evaluates names of dims that
    contain sums and products.
    """
    variables: dict[Dim, Any] = {}

    def convert(dim: Dim) -> Any:
        return dim if isinstance(dim, int) else variables.setdefault(dim, tirx.Var(f"size_{len(variables)}", "int64"))

    return {v.name: list(map(convert, v.type.shape or ())) for v in function.inputs if isinstance(v.type, TensorType)}


@contextmanager
def _log_output(importer: onnx_frontend.ONNXGraphImporter) -> Iterator[None]:
    """Log what the importer prints during the ``with`` block. If the importer raises, close the Relax block that is open."""
    onnx_frontend.print = lambda *words: log.debug("importer: %s", words)
    try:
        yield
    except Exception:
        with suppress(Exception):
            importer.bb._end_block()  # a builder that is destroyed with an open block prints a warning to stderr
        raise
    finally:
        del onnx_frontend.print


def convert_type(type_: Any) -> TensorType:
    """Convert a Relax type to XRT's type. Symbolic dims become None. Raises TypeError if the type is not a tensor type."""
    if not isinstance(type_, relax.TensorType):
        raise TypeError(f"the result is {type_}, which is not a tensor")
    dtype = DType.parse(str(type_.dtype).replace("_", ""))
    if not isinstance(type_.shape, relax.ShapeExpr):
        return TensorType(dtype)
    return TensorType(dtype, tuple(int(d) if hasattr(d, "value") else None for d in type_.shape))


MIN_REWRITE_OPSET = 9
"""The first opset with Where and IsNaN, and with broadcasting everywhere."""


def decompose(function: Function) -> Function:
    """Decompose the operators of `LOWERED`, and by the rules of `_REWRITTEN` compute with constant weights at compile time."""
    if not any(node.op in LOWERED or node.op in _REWRITTEN for node in function.nodes):
        return function
    if function.opset() < MIN_REWRITE_OPSET:
        # Upgrade only if it is necessary: LLVM rejects the importer's Equal of booleans, and the other operators are only slower.
        if not any(_compares_booleans(node, function) for node in function.nodes):
            return function
        function = upgrade_opset(function, MIN_REWRITE_OPSET)
    return drop_dead_nodes(rewrite_nodes(function, _rewrite_node))


def _compares_booleans(node: Node, function: Function) -> bool:
    type_ = function.get_type(node.inputs[0]) if node.op == "Equal" else None
    return isinstance(type_, TensorType) and type_.dtype is DType.BOOL


def _rewrite_node(w: NodeWriter) -> str | Sequence[str] | None:
    """Write a replacement for ``w.node`` and return the names of its results; None leaves the node as it is."""
    if w.node.op in LOWERED:
        # TVM supports LayerNormalization only without its statistics, and not in float64.
        has_statistics = any(w.node.outputs[1:])
        if w.node.op == "LayerNormalization" and not has_statistics and w.dtype(w.x) is not DType.FLOAT64:
            return None
        return write_decomposition(w)
    rule = _REWRITTEN.get(w.node.op)
    return None if rule is None else rule(w)


def _batch_normalization(w: NodeWriter) -> str | None:
    """Multiply by one factor and add one term per channel, both computed at compile time from the weights."""
    weights = [w.find_input(index) for index in range(1, 5)]
    constants = [weight.astype(np.float64) for weight in weights if weight is not None]
    if len(constants) < 4 or len(w.node.outputs) > 1 or not w.dtype(w.x).is_float:
        return None
    scale, bias, mean, variance = constants
    # (x - mean) / sqrt(variance + epsilon) * scale + bias = x * factor + (bias - mean * factor)
    factor = scale / np.sqrt(variance + w.attr("epsilon", 1e-5))
    scaled = w.op("Mul", w.x, _write_channel_constant(w, factor))
    return w.op("Add", scaled, _write_channel_constant(w, bias - mean * factor))


def _write_channel_constant(w: NodeWriter, values: np.ndarray[Any, Any]) -> str:
    """Write a constant with one value per channel that broadcasts over the input, and return its name."""
    return w.constant(values.reshape((-1, *[1] * (w.rank(w.x) - 2))), w.dtype(w.x).numpy)


def _gemm(w: NodeWriter) -> str | None:
    """Transpose a constant second operand at compile time instead of in every run."""
    weights = w.find_input(1)
    if weights is None or not w.attr("transB", 0):
        return None
    transposed = w.constant(np.ascontiguousarray(weights.T))
    attributes = tuple(a for a in w.node.attributes if a.name != "transB")
    return w.op("Gemm", w.x, transposed, *w.node.inputs[2:], attributes=attributes)


_REWRITTEN: Mapping[str, Callable[[NodeWriter], str | None]] = {
    "BatchNormalization": _batch_normalization,
    "Gemm": _gemm,
}
