"""Which nodes IREE supports: cheap rules first, then the answer of its compiler for the single node."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from xrt.engines.iree.compiler import lower_module
from xrt.engines.iree.export import ELEMENTS, INLINE, make_query_module
from xrt.engines.iree.known_issues import find_known_issue
from xrt.engines.iree.lowering import OPSET, preprocess
from xrt.engines.toolkit.node_query import NodeQuery, has_symbolic_dims, why_not_at_every_size
from xrt.forking import renew_after_fork
from xrt.graph import (
    Constant,
    Function,
    Node,
    TensorType,
    Type,
    since_version,
)
from xrt.operators import find_value, is_deterministic
from xrt.passes.opset_upgrade import why_not_upgradable

REMEMBERED = 8192
"""Limit on memoized answers."""
AT_ONCE = 32
"""Queries per call of the compiler, so that a search with little time need not wait for a whole model."""


def why_not(node: Node, function: Function) -> str | None:
    """Explain why IREE does not support the node; None if it does.

    The compiler is a process, so the first query also covers the other kinds of nodes of the Function.
    """
    return _plain_refusal(node, function) or _check_conversion.answer(_question(node, function), function)


def _plain_refusal(node: Node, function: Function) -> str | None:
    """Explain by rules alone why the node is not supported; also declines nodes with missing inputs or attributes."""
    try:
        return _refusal_by_rules(node, function)
    except (IndexError, ValueError) as error:
        return f"{node.op} lacks what its operator needs: {error}"


def _refusal_by_rules(node: Node, function: Function) -> str | None:
    if node.domain:
        return f"IREE's compiler has rules for ONNX's own operators, not for those of {node.domain!r}"
    if node.bodies:
        return f"{node.op} has a body, and XRT exports only straight-line code to IREE"
    if since_version(node, function) is None:
        return f"{node.op} is not an operator of opset {function.opsets.get('')}"
    if not is_deterministic(node, function):
        return f"{node.op} draws random numbers, and IREE does not follow ONNX's distribution"
    for name in (*node.uses, *_used(node, function)):
        if reason := _type_refusal(name, function.get_type(name)):
            return reason
    open_shapes = why_not_at_every_size(node, function, AT_EVERY_SIZE) if has_symbolic_dims(node, function) else None
    return open_shapes or find_known_issue(node, function) or why_not_upgradable(node, function, OPSET)


_TRIED = (
    "Abs Add And Cast Ceil Clip Concat Div Elu Equal Erf Exp Flatten Floor Gather Gelu Gemm Greater GreaterOrEqual HardSigmoid "
    "Identity LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max Min Mul Neg Not Or Pow Reciprocal "
    "ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Selu Sigmoid Sign Slice Softmax Softplus Softsign "
    "Split Sqrt Squeeze Sub Swish Tanh Transpose Unsqueeze Where Xor"
)
AT_EVERY_SIZE = frozenset(_TRIED.split())
"""Operators that agreed with the reference at every size when compiled with symbolic dims."""


def _used(node: Node, function: Function) -> list[str]:
    output_names = {value.name for value in function.outputs}
    return [name for name in node.outputs if name and (function.users(name) or name in output_names)]


def _type_refusal(name: str, type_: Type | None) -> str | None:
    if type_ is None:
        return f"the type of {name!r} is not known before the run"
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and XRT exports only tensors to IREE"
    if type_.dtype not in ELEMENTS:
        return f"{name!r} is {type_.dtype}, which XRT does not export to IREE"
    if type_.shape is None or None in type_.shape:
        return f"the shape of {name!r} is not known before the run"
    if 0 in (type_.shape or ()):
        return f"{name!r} is {type_}, which has no elements and so no memory to pass"
    return None


# ---------------------------------------------------------------------- the compiler's answer


def _question(node: Node, function: Function) -> NodeQuery:
    return NodeQuery.of(node, function, function.opsets.get("", 1), _find_constant, _used(node, function))


def _find_constant(name: str, function: Function) -> Constant | None:
    """A constant that is exported as a literal; None for other values."""
    constant = find_value(name, function)
    return constant if constant is not None and constant.array.size <= INLINE else None


class _Memory:
    """Memoized answers of the compiler; the oldest are dropped first."""

    def __init__(self) -> None:
        self._answers: dict[NodeQuery, str | None] = {}
        self._lock = renew_after_fork(threading.Lock())

    def answer(self, question: NodeQuery, function: Function) -> str | None:
        """The answer to a query; on a miss, also queries other nodes of the Function."""
        with self._lock:
            if question not in self._answers:
                self._learn([question, *self._unknown(question, function)])
            return self._answers[question]

    def _unknown(self, query: NodeQuery, function: Function) -> list[NodeQuery]:
        kinds = dict.fromkeys(_question(n, function) for n in function.nodes if _plain_refusal(n, function) is None)
        return [kind for kind in kinds if kind not in self._answers and kind != query][: AT_ONCE - 1]

    def _learn(self, questions: Sequence[NodeQuery]) -> None:
        self._answers.update(zip(questions, _answers(questions), strict=True))
        for old in list(self._answers)[: max(len(self._answers) - REMEMBERED, 0)]:
            del self._answers[old]


_check_conversion = _Memory()


def _answers(questions: Sequence[NodeQuery]) -> list[str | None]:
    answers: list[str | None] = []
    texts: dict[int, str] = {}
    for place, question in enumerate(questions):
        try:
            texts[place] = make_query_module(preprocess(question.to_function()), f"question{place}")
            answers.append(None)
        except ValueError as error:  # not expressible in MLIR
            answers.append(str(error))
    reasons = lower_module(list(texts.values()), [f"question{place}" for place in texts])
    for place, reason in zip(texts, reasons, strict=True):
        if reason is not None:
            answers[place] = f"IREE cannot take this {questions[place].op_type}: {reason}"
    return answers
