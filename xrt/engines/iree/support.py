"""Why IREE does not support a node: explicit rules, then a query of its compiler for the single node."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from xrt.engines.iree.compiler import lower_module
from xrt.engines.iree.export import ELEMENTS, INLINE, OPSET, make_query_module, preprocess
from xrt.engines.iree.tables import AT_EVERY_SIZE, ISSUES
from xrt.engines.toolkit.known_issues import match_known_issue
from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, list_used_outputs, support_every_size, why_not_defined
from xrt.forking import renew_after_fork
from xrt.formats.onnx import why_not_upgradable
from xrt.graph import Function, Node, TensorType, Type
from xrt.operators import is_deterministic

REMEMBERED = 8192
"""Limit on memoized answers."""
QUERIES_PER_CALL = 32
"""Maximum number of queries per run of the compiler: a search with a short time limit does not wait for the whole model."""


def why_not(node: Node, function: Function) -> str | None:
    """Explain why IREE does not support the node; None if it does."""
    return _SUPPORT.why_not(node, function)


def _why_not_form(node: Node, function: Function) -> str | None:
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
    if type_.dtype not in ELEMENTS:
        return f"{name!r} is {type_.dtype}, which XRT does not export to IREE"
    if type_.shape is None or None in type_.shape:
        return f"the shape of {name!r} is not known before the run"
    if 0 in type_.shape:
        return f"{name!r} is {type_}, which has no elements and so no memory to pass"
    return None


# ---------------------------------------------------------------------- the compiler's answer


class _Answers:
    """Memoized answers of the compiler; the oldest are dropped first."""

    def __init__(self) -> None:
        self._answers: dict[NodeQuery, str | None] = {}
        self._lock = renew_after_fork(threading.Lock())

    def answer(self, node: Node, function: Function) -> str | None:
        """The answer for a node. The compiler is a process, so a miss also queries other kinds of nodes of the Function."""
        query = _make_query(node, function)
        # Held while the compiler runs: a second thread most often has the same nodes to ask for.
        with self._lock:
            if query not in self._answers:
                supported = (n for n in function.nodes if _SUPPORT.why_not_by_rules(n, function) is None)
                # Without duplicates and in order, the node's own query first.
                kinds = dict.fromkeys((query, *(_make_query(n, function) for n in supported)))
                self._store_answers([query, *(k for k in kinds if k not in self._answers and k != query)][:QUERIES_PER_CALL])
            return self._answers[query]

    def _store_answers(self, queries: Sequence[NodeQuery]) -> None:
        self._answers.update(zip(queries, _query_compiler(queries), strict=True))
        for old in list(self._answers)[: max(len(self._answers) - REMEMBERED, 0)]:
            del self._answers[old]


def _make_query(node: Node, function: Function) -> NodeQuery:
    return NodeQuery.of(node, function, limit=INLINE, outputs=list_used_outputs(node, function))


_SUPPORT = LibrarySupport(
    operator=(_why_not_form, why_not_defined, _why_not_random),
    why_not_type=_why_not_type,
    tables=(
        support_every_size(AT_EVERY_SIZE),
        partial(match_known_issue, ISSUES),
        lambda node, function: why_not_upgradable(node, function, OPSET),
    ),
    answer=_Answers().answer,
)


def _query_compiler(queries: Sequence[NodeQuery]) -> list[str | None]:
    answers: list[str | None] = []
    texts: dict[int, str] = {}
    for place, query in enumerate(queries):
        try:
            texts[place] = make_query_module(preprocess(query.to_function()), f"query{place}")
            answers.append(None)
        except ValueError as error:  # not expressible in MLIR
            answers.append(str(error))
    reasons = lower_module(list(texts.values()), [f"query{place}" for place in texts])
    for place, reason in zip(texts, reasons, strict=True):
        if reason is not None:
            answers[place] = f"IREE cannot take this {queries[place].op_type}: {reason}"
    return answers
