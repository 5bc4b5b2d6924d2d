"""Decide whether TVM supports a node: by explicit rules, then by importing the single node."""

from __future__ import annotations

from functools import lru_cache, partial

from xrt.engines.toolkit.known_issues import match_known_issue
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.support import (
    LibrarySupport,
    NodeQuery,
    check_symbolic_dims,
    explain_disagreement,
    has_symbolic_dims,
    list_used_outputs,
    why_not_defined,
)
from xrt.engines.tvm.cuda import OLDEST_ARCHITECTURE, build, make_target as device_target
from xrt.engines.tvm.export import compiler_lock, import_function
from xrt.engines.tvm.pipeline import legalize
from xrt.engines.tvm.tables import CONSTANT_OPERANDS, DTYPES, ISSUES, SIZE_INDEPENDENT
from xrt.engines.tvm.target import make_target
from xrt.errors import CompileRefused
from xrt.graph import Function, Node, TensorType, Type, find_schema, since_version
from xrt.operators import list_shape_operands


def _why_not_importable(node: Node, function: Function) -> str | None:
    if node.domain:
        return f"TVM's importer ignores operator domains, so {node.op} could mean another operator"
    return f"{node.op} has a body, and XRT exports only straight-line code to TVM" if node.bodies else None


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    """Explain why the type of an input or output is unsupported; None if it is supported. The import infers shapes of outputs."""
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and TVM supports only tensors"
    if type_.dtype not in DTYPES:
        return f"{name!r} is {type_.dtype}, which XRT does not compile with TVM"
    if name in node.inputs and (type_.shape is None or None in type_.shape):
        return f"the shape of {name!r} is not known before the run"
    if 0 in (type_.shape or ()):
        return f"{name!r} is {type_}, which has no elements, and TVM's loops need at least one"
    return None


def _is_on_cpu(node: Node) -> bool:
    return node.device.partition(":")[0] in ("", "cpu")


def _why_not_symbolic(node: Node, function: Function) -> str | None:
    if has_symbolic_dims(node, function) and not _is_on_cpu(node):
        return "TVM's schedules for GPUs need fixed sizes"
    return _why_not_every_size(node, function)


def _try_node(node: Node, function: Function) -> str | None:
    """Explain why TVM fails to import the node, or to build it for its device; None if both work. Equal nodes are cached."""
    # The operator's version, not the model's opset: nodes with the same definition share a cache entry.
    version = since_version(node, function)
    used = list_used_outputs(node, function)
    query = NodeQuery.from_node(node, function, version=version, outputs=used)
    if reason := _why_not_convertible(query):
        return reason
    return None if _is_on_cpu(node) else _why_not_buildable_on_cuda(query)


_why_not_every_size = check_symbolic_dims(SIZE_INDEPENDENT)
SUPPORT = LibrarySupport(
    operator=(_why_not_importable, why_not_defined),
    why_not_type=_why_not_type,
    known_types="inputs",
    tables=(_why_not_symbolic, partial(match_known_issue, ISSUES)),
    query=_try_node,
)


@lru_cache(maxsize=4096)
def _why_not_convertible(query: NodeQuery) -> str | None:
    """Explain why the import of the single node fails, or infers other result types than ONNX; None if it does neither.

    Takes a few milliseconds.
    """
    if reason := _why_not_constant(query):
        return reason
    try:
        with compiler_lock:
            imported = import_function(query.to_function())
            legalize(imported.module, make_target(None, 3))
    except Exception as cause:  # noqa: BLE001  # TVM may raise anything
        return f"TVM does not support this {query.op_type}: {summarize_error(cause)}"
    declared = query.required_types
    if len(imported.results) != len(declared):
        return f"TVM's {query.op_type} returns {len(imported.results)} results, and {len(declared)} are used"
    has_static_inputs = all(type_.is_static for type_ in query.inputs if isinstance(type_, TensorType))
    if any(result.shape is None or (has_static_inputs and not result.is_static) for result in imported.results):
        return f"TVM does not know the shape of the result of {query.op_type} before the run"
    return explain_disagreement("TVM", query.op_type, imported.results, declared)


@lru_cache(maxsize=4096)
def _why_not_buildable_on_cuda(query: NodeQuery) -> str | None:
    """Explain why TVM fails to generate CUDA C++ for the single node; None if it does not. Takes 60 ms, and needs no GPU."""
    try:
        with compiler_lock:
            imported = import_function(query.to_function(), polynomials=False)
            # Every later architecture supports the features of the oldest one.
            build(imported, device_target(OLDEST_ARCHITECTURE, make_target(None, 3)), 3)
    except CompileRefused as refused:
        return f"TVM does not support this {query.op_type} on CUDA: {refused}"
    except Exception as cause:  # noqa: BLE001  # TVM may raise anything
        return f"TVM's schedules for GPUs do not support this {query.op_type}: {summarize_error(cause)}"
    return None


def _why_not_constant(query: NodeQuery) -> str | None:
    """Explain that an input which TVM needs as a constant is computed at run time; None if there is no such input."""
    for position in (*list_shape_operands(query.op_type), *CONSTANT_OPERANDS.get(query.op_type, ())):
        if position < len(query.inputs) and isinstance(query.inputs[position], TensorType):
            schema = find_schema(query.op_type, query.version)
            name = schema.inputs[position].name if schema is not None else str(position)
            return f"TVM needs the {name!r} of {query.op_type} as a constant, and it is computed at run time"
    return None
