"""Import a Function as a Relax module with TVM's ONNX importer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.relax.frontend.onnx import onnx_frontend

from xrt.engines.tvm.decompositions import decompose
from xrt.engines.tvm.relax_rewrites import rewrite
from xrt.forking import renew_after_fork
from xrt.formats.onnx import lowest_model
from xrt.graph import Constant, Dim, DType, Function, TensorType, Value
from xrt.passes import fold_constants

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
    ``polynomials`` exponentials are approximated, for CPUs. Raises whatever TVM's importer raises.
    """
    function = decompose(fold_constants(function, _no_evaluation))
    heavy = {name: c for name, c in function.constants.items() if c.array.size > INLINE}
    lifted = function.replace(
        inputs=(*function.inputs, *(Value(name, c.type) for name, c in heavy.items())),
        constants={name: c for name, c in function.constants.items() if name not in heavy},
    )
    model = lowest_model(lifted)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    importer = onnx_frontend.ONNXGraphImporter(_shapes(lifted), {}, sanitize=False)
    with compiler_lock, _quiet(importer):
        module = rewrite(importer.from_onnx(model.graph, opset), polynomials)
    return ImportedModule(module, tuple(heavy.values()), _result_types(module))


def _no_evaluation(function: Function, inputs: list[Any]) -> NoReturn:
    raise NotImplementedError("only nodes that need no computation are folded")


def _shapes(function: Function) -> dict[str, list[Any]]:
    """Shapes by input, with a variable for each symbolic dim.

    They are passed separately, because the importer treats an extent of 0 in the model as unknown, and parses sums and products
    in names of dims.
    """
    variables: dict[Dim, Any] = {}

    def find(dim: Dim) -> Any:
        return dim if isinstance(dim, int) else variables.setdefault(dim, tirx.Var(f"size_{len(variables)}", "int64"))

    return {v.name: list(map(find, v.type.shape or ())) for v in function.inputs if isinstance(v.type, TensorType)}


@contextmanager
def _quiet(importer: onnx_frontend.ONNXGraphImporter) -> Iterator[None]:
    """Log what the importer prints before it raises, and close the block that it leaves open."""
    onnx_frontend.print = lambda *words: log.debug("importer: %s", words)
    try:
        yield
    except Exception:
        with suppress(Exception):
            importer.bb._end_block()  # an open block is a warning on stderr when the builder goes
        raise
    finally:
        del onnx_frontend.print


def _result_types(module: IRModule) -> tuple[TensorType, ...]:
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
