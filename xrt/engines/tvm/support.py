"""Why TVM does not support a node: explicit rules, then a trial import of the single node."""

from __future__ import annotations

from functools import lru_cache, partial

from xrt.engines.toolkit.known_issues import match_known_issue
from xrt.engines.toolkit.support import (
    LibrarySupport,
    NodeQuery,
    explain_disagreement,
    has_symbolic_dims,
    list_used_outputs,
    support_every_size,
    why_not_defined,
)
from xrt.engines.tvm.cuda import OLDEST, build, make_target as device_target
from xrt.engines.tvm.executable import summarize_error
from xrt.engines.tvm.export import INLINE, compiler_lock, import_function
from xrt.engines.tvm.pipeline import legalize
from xrt.engines.tvm.tables import AT_EVERY_SIZE, DTYPES, ISSUES, positions_read_at_import
from xrt.engines.tvm.target import make_target
from xrt.errors import CompileRefused
from xrt.graph import Function, Node, TensorType, Type, find_schema, since_version


def why_not(node: Node, function: Function) -> str | None:
    """Explain why TVM does not support the node on its device; None if it does."""
    return _SUPPORT.why_not(node, function)


def _why_not_form(node: Node, function: Function) -> str | None:
    if node.domain:
        return f"TVM's importer does not tell operator domains apart, so that {node.op} could mean another operator"
    return f"{node.op} has a body, and XRT exports only straight-line code to TVM" if node.bodies else None


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and TVM takes tensors only"
    if type_.dtype not in DTYPES:
        return f"{name!r} is {type_.dtype}, which TVM does not compute in on a CPU"
    if name in node.inputs and (type_.shape is None or None in type_.shape):
        return f"the shape of {name!r} is not known before the run"
    if 0 in (type_.shape or ()):
        return f"{name!r} is {type_}, which has no elements, and TVM's loops need one"
    return None


def _why_not_open(node: Node, function: Function) -> str | None:
    if has_symbolic_dims(node, function) and node.device.partition(":")[0] not in ("", "cpu"):
        return "TVM's schedules for GPUs need fixed sizes"
    return _EVERY_SIZE(node, function)


def _answer(node: Node, function: Function) -> str | None:
    # The version of the operator, not of the model's opset: nodes of equal definition share an answer.
    version, used = since_version(node, function), list_used_outputs(node, function)
    query = NodeQuery.of(node, function, limit=INLINE, version=version, outputs=used)
    reason = _check_conversion(query)
    return reason if reason or node.device.partition(":")[0] in ("", "cpu") else _check_device_build(query)


_EVERY_SIZE = support_every_size(AT_EVERY_SIZE)
_SUPPORT = LibrarySupport(
    operator=(_why_not_form, why_not_defined),
    why_not_type=_why_not_type,
    typed="inputs",
    tables=(_why_not_open, partial(match_known_issue, ISSUES)),
    answer=_answer,
)


@lru_cache(maxsize=4096)
def _check_conversion(query: NodeQuery) -> str | None:
    """Import and legalize the single node, which takes a few milliseconds, and compare the types that TVM and ONNX infer."""
    if reason := _why_not_constant(query):
        return reason
    try:
        with compiler_lock:
            imported = import_function(query.to_function())
            legalize(imported.module, make_target(None, 3))
    except Exception as cause:  # noqa: BLE001  # TVM may raise anything
        return f"TVM cannot take this {query.op_type}: {summarize_error(cause)}"
    declared = query.required_types
    if len(imported.results) != len(declared):
        return f"TVM takes this {query.op_type} for one of {len(imported.results)} results, where {len(declared)} are asked for"
    is_open = any(isinstance(type_, TensorType) and not type_.is_static for type_ in query.inputs)
    if any(inferred.shape is None or not (inferred.is_static or is_open) for inferred in imported.results):
        return f"the shape of what {query.op_type} returns is not known to TVM before the run"
    return explain_disagreement("TVM", query.op_type, imported.results, declared)


@lru_cache(maxsize=4096)
def _check_device_build(query: NodeQuery) -> str | None:
    """Generate CUDA C++ for the node, which takes about 60 ms and needs neither a GPU nor CUDA."""
    try:
        with compiler_lock:
            imported = import_function(query.to_function(), polynomials=False)
            # Later architectures support all that the oldest one does.
            build(imported.module, imported.weights, device_target(OLDEST, make_target(None, 3)), 3)
    except CompileRefused as refused:
        return f"TVM cannot take this {query.op_type} on CUDA: {refused}"
    except Exception as cause:  # noqa: BLE001  # TVM may raise anything
        return f"TVM's schedules for GPUs cannot take this {query.op_type}: {summarize_error(cause)}"
    return None


def _why_not_constant(query: NodeQuery) -> str | None:
    """Name an input that TVM needs as a constant but that is computed; None if there is none."""
    for position in positions_read_at_import(query.op_type):
        if position < len(query.inputs) and isinstance(query.inputs[position], TensorType):
            schema = find_schema(query.op_type, query.version)
            name = schema.inputs[position].name if schema is not None else str(position)
            return f"TVM needs the {name!r} of {query.op_type} as a constant, and here it is known only at run time"
    return None
