"""Decide whether IREE supports a node: by explicit rules, then by lowering the single node with IREE's compiler."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from xrt.engines.iree.compiler import why_not_lowerable
from xrt.engines.iree.export import MIN_OPSET, MLIR_TYPES, make_query_module, preprocess
from xrt.engines.iree.tables import ISSUES, SIZE_INDEPENDENT
from xrt.engines.toolkit.known_issues import match_known_issue
from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, check_symbolic_dims, list_used_outputs, why_not_defined
from xrt.forking import renew_after_fork
from xrt.formats.onnx import why_not_upgradable
from xrt.graph import Function, Node, TensorType, Type
from xrt.operators import is_deterministic

MAX_CACHED_REASONS = 8192
"""Number of nodes whose reasons are cached."""
MAX_QUERIES_PER_RUN = 32
"""Maximum number of nodes in one run of the compiler, so that a search with a short time limit does not wait too long."""


def _why_not_importable(node: Node, function: Function) -> str | None:
    if node.domain:
        return f"IREE's compiler has rules for ONNX's own operators, not for those of {node.domain!r}"
    return f"{node.op} has a body, and XRT exports only straight-line code to IREE" if node.bodies else None


def _why_not_random(node: Node, function: Function) -> str | None:
    if is_deterministic(node, function):
        return None
    return f"{node.op} draws random numbers, and IREE does not follow ONNX's distribution"


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and XRT exports only tensors to IREE"
    if type_.dtype not in MLIR_TYPES:
        return f"{name!r} is {type_.dtype}, which XRT does not export to IREE"
    if type_.shape is None or None in type_.shape:
        return f"the shape of {name!r} is not known before the run"
    if 0 in type_.shape:
        return f"{name!r} is {type_}, which has no elements and so no memory to pass"
    return None


_reasons: dict[NodeQuery, str | None] = {}
"""Why IREE's compiler cannot lower a node; None if it can. The oldest entries are removed first."""
_lock = renew_after_fork(threading.Lock())


def _why_not_lowered(node: Node, function: Function) -> str | None:
    """Explain why the compiler cannot lower the node; None if it can.

    If the node is not cached, up to `MAX_QUERIES_PER_RUN` supported nodes of the Function that are not cached either are lowered
    in the same run of the compiler, because starting it takes longer than lowering them.
    """
    query = _make_query(node, function)
    # Held while the compiler runs, because other threads usually query the same nodes.
    with _lock:
        if query not in _reasons:
            supported = (n for n in function.nodes if SUPPORT.why_not_by_rules(n, function) is None)
            queries = dict.fromkeys((query, *(_make_query(n, function) for n in supported)))
            new_queries = [q for q in queries if q not in _reasons][:MAX_QUERIES_PER_RUN]
            _reasons.update(zip(new_queries, _find_reasons(new_queries), strict=True))
            for oldest in list(_reasons)[:-MAX_CACHED_REASONS]:
                del _reasons[oldest]
        return _reasons[query]


def _make_query(node: Node, function: Function) -> NodeQuery:
    return NodeQuery.from_node(node, function, outputs=list_used_outputs(node, function))


SUPPORT = LibrarySupport(
    operator=(_why_not_importable, why_not_defined, _why_not_random),
    why_not_type=_why_not_type,
    tables=(
        check_symbolic_dims(SIZE_INDEPENDENT),
        partial(match_known_issue, ISSUES),
        lambda node, function: why_not_upgradable(node, function, MIN_OPSET),
    ),
    query=_why_not_lowered,
)


def _find_reasons(queries: Sequence[NodeQuery]) -> list[str | None]:
    """For each query, explain why IREE cannot lower its node; None if it can. One run of the compiler lowers all nodes."""
    reasons: list[str | None] = []
    modules: dict[int, str] = {}
    for index, query in enumerate(queries):
        try:
            modules[index] = make_query_module(preprocess(query.to_function()), f"query{index}")
            reasons.append(None)
        except ValueError as error:  # MLIR has no such type or attribute
            reasons.append(str(error))
    lowering_reasons = why_not_lowerable(list(modules.values()), [f"query{index}" for index in modules])
    for index, reason in zip(modules, lowering_reasons, strict=True):
        if reason is not None:
            reasons[index] = f"IREE does not support this {queries[index].op_type}: {reason}"
    return reasons
