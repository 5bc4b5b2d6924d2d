"""Why TVM cannot take a node: rules that a person can read, and then a trial import of the node alone."""

from __future__ import annotations

from functools import lru_cache

from xrt.engines.toolkit.learned_models import find_learned_definition
from xrt.engines.toolkit.node_query import NodeQuery
from xrt.engines.toolkit.open_shapes import ELEMENTWISE, has_symbolic_dims, why_not_at_every_size
from xrt.engines.tvm.cuda.codegen import OLDEST, build
from xrt.engines.tvm.cuda.codegen import make_target as device_target
from xrt.engines.tvm.errors import summarize_error
from xrt.engines.tvm.export import INLINE, compiler_lock, import_function, make_constant
from xrt.engines.tvm.known_issues import find_known_issue
from xrt.engines.tvm.pipeline import legalize
from xrt.engines.tvm.target import make_target
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Type, find_schema, since_version

__all__ = ["positions_read_at_import", "why_not"]

_FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
_INTEGERS = {DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
DTYPES = _FLOATS | _INTEGERS | {DType.BOOL}


def why_not(node: Node, function: Function) -> str | None:
    """Return why TVM cannot take the node, on the device that it names, as a Function of its own; None when it can."""
    if (said := find_learned_definition(node, function)) is not None:
        return next((reason for inner in said.nodes if (reason := why_not(inner, said))), None)
    if node.domain:
        return f"TVM's importer does not tell operator domains apart, so that {node.op} could mean another operator"
    if node.bodies:
        return f"{node.op} has a body, and XRT hands TVM straight-line code only"
    version = since_version(node, function)
    if version is None:
        return f"{node.op} is not an operator of opset {function.opsets.get('')}"
    used = [name for name in node.outputs if name and _is_used(name, function)]
    for name in (*node.uses, *used):
        if reason := _type_refusal(name, function.get_type(name), produced=name in used):
            return reason
    if has_symbolic_dims(node, function) and (reason := _why_not_open(node, function)):
        return reason
    question = NodeQuery.of(node, function, version, _find_constant, used)
    reason = find_known_issue(node, function) or _check_conversion(question)
    return reason if reason or node.device.partition(":")[0] in ("", "cpu") else _trial_on_device(question)


def _why_not_open(node: Node, function: Function) -> str | None:
    if node.device.partition(":")[0] not in ("", "cpu"):
        return "TVM's schedules for GPUs are given fixed sizes"
    return why_not_at_every_size(node, function, AT_EVERY_SIZE)


LOOPS_APART = frozenset(
    ["Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Softmax"]
)
"""Operators whose loops are arranged for fixed sizes alone."""
_MOVES = ["Concat", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"]
AT_EVERY_SIZE = ELEMENTWISE.union(_MOVES, LOOPS_APART)
"""Operators that were tried with symbolic dims, and agreed at every size."""


def _is_used(name: str, function: Function) -> bool:
    return bool(function.users(name)) or any(v.name == name for v in function.outputs)


def _type_refusal(name: str, type_: Type | None, *, produced: bool) -> str | None:
    if type_ is None:
        return None if produced else f"the type of {name!r} is not known before the run"
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and TVM takes tensors only"
    if type_.dtype not in DTYPES:
        return f"{name!r} is {type_.dtype}, which TVM does not compute in on a CPU"
    if not produced and (type_.shape is None or None in type_.shape):
        return f"the shape of {name!r} is not known before the run"
    if 0 in (type_.shape or ()):
        return f"{name!r} is {type_}, which has no elements, and TVM's loops need one"
    return None


def _find_constant(name: str, function: Function) -> Constant | None:
    """Return a constant that the importer may read; None for other values."""
    constant = make_constant(name, function)
    return constant if constant is not None and constant.array.size <= INLINE else None


@lru_cache(maxsize=4096)
def _check_conversion(question: NodeQuery) -> str | None:
    """Import and legalise the node alone, a few milliseconds, and compare what TVM infers with what ONNX says."""
    if reason := _varying(question):
        return reason
    try:
        with compiler_lock:
            imported = import_function(question.to_function())
            legalize(imported.module, make_target(None, 3))
    except Exception as cause:  # noqa: BLE001  # whatever TVM raises is why it cannot
        return f"TVM cannot take this {question.op_type}: {summarize_error(cause)}"
    wanted = question.asked
    if len(imported.results) != len(wanted):
        return f"TVM takes this {question.op_type} for one of {len(imported.results)} results, where {len(wanted)} are asked for"
    is_open = any(isinstance(given, TensorType) and not given.is_static for given in question.inputs)
    reasons = (_disagreement(question.op_type, got, want, is_open) for got, want in zip(imported.results, wanted, strict=True))
    return next((reason for reason in reasons if reason), None)


@lru_cache(maxsize=4096)
def _trial_on_device(question: NodeQuery) -> str | None:
    """Generate the node's CUDA C++, some 60 milliseconds. It takes no GPU, and nothing of CUDA's."""
    try:
        with compiler_lock:
            imported = import_function(question.to_function(), polynomials=False)
            build(imported.module, imported.weights, device_target(OLDEST, make_target(None, 3)), 3)
    except CompileRefused as refused:
        return f"TVM cannot take this {question.op_type} on CUDA: {refused}"
    except Exception as cause:  # noqa: BLE001  # whatever TVM raises is why it cannot
        return f"TVM's schedules for GPUs cannot take this {question.op_type}: {summarize_error(cause)}"
    return None


def _disagreement(op_type: str, got: TensorType, want: Type | None, is_open: bool) -> str | None:
    if got.shape is None or not (got.is_static or is_open):
        return f"the shape of what {op_type} returns is not known to TVM before the run"
    if isinstance(want, TensorType) and not _agrees(got, want):
        return f"TVM takes the result of this {op_type} for {got}, where ONNX says {want}"
    return None


def _agrees(got: TensorType, want: TensorType) -> bool:
    if got.dtype is not want.dtype or want.shape is None or got.shape is None:
        return got.dtype is want.dtype
    return len(got.shape) == len(want.shape) and all(
        not isinstance(w, int) or g == w for g, w in zip(got.shape, want.shape, strict=True)
    )


_READ_AT_IMPORT = {
    "AffineGrid": (1,),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1, 2),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}


def positions_read_at_import(op_type: str) -> tuple[int, ...]:
    """Return which inputs decide what code TVM makes, and so must be constants."""
    return (1,) if op_type.startswith("Reduce") else _READ_AT_IMPORT.get(op_type, ())


def _varying(question: NodeQuery) -> str | None:
    """Return which input would have to be a constant; None when all of these are."""
    for position in positions_read_at_import(question.op_type):
        if position < len(question.inputs) and isinstance(question.inputs[position], TensorType):
            schema = find_schema(question.op_type, question.version)
            name = schema.inputs[position].name if schema is not None else str(position)
            return f"TVM needs the {name!r} of {question.op_type} as a constant, and here it is known only at run time"
    return None
