"""The toolkit for authors of engines: support of nodes, known issues, texts of errors, aliases of memory, and symbolic dims."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines.written import one, tensor
from xrt.engines.toolkit.known_issues import KnownIssue, Predicate, always, attribute_is, match_known_issue
from xrt.engines.toolkit.libraries import shorten, summarize_error
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.engines.toolkit.support import (
    SYMBOLIC_OPERATORS,
    LibrarySupport,
    explain_disagreement,
    has_symbolic_dims,
    why_not_defined,
    why_not_symbolic,
)
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import graph, i64, node


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("Exception from src/core.cpp:105:\n  Check 'ok' failed at a.cpp:1:\n\tNo rule for: Net.  ", "No rule for: Net"),
        ("Check 'ok' failed at a.cpp:1:", "RuntimeError"),
        ("INVALID_ARGUMENT: no such shape", "no such shape"),
        ("Check failed: (a == b) is false: no such axis\nStack trace:\n  File here", "no such axis"),
        ("Check failed: (a == b) is false", "Check failed: (a == b) is false"),
        ("/src/a.cc:89 onnxruntime::Locale::Locale(const std::string&)::<lambda()> No locale en_US", "No locale en_US"),
    ],
)
def test_noise_is_removed_from_one_line(text: str, summary: str) -> None:
    assert summarize_error(RuntimeError(text)) == summary


@pytest.mark.parametrize(("limit", "cut"), [(6, "abcdef"), (5, "ab..."), (3, "...")])
def test_a_long_text_is_cut_within_the_limit(limit: int, cut: str) -> None:
    assert shorten("abcdef", limit) == cut


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_an_alias_has_the_memory_and_may_be_written_to(dtype: type, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    array.flags.writeable = False
    alias = make_writable_alias(array)
    assert (alias.dtype, alias.shape, alias.flags.writeable, alias.ctypes.data) == (array.dtype, shape, True, array.ctypes.data)
    alias[...] = 0
    assert not array.any()


@pytest.mark.slow
def test_an_alias_keeps_its_owner() -> None:
    class Owner:
        pass

    owner = Owner()
    alias = make_writable_alias(np.ones(3, np.float32), owner)
    lives = weakref.ref(owner)
    del owner
    gc.collect()
    assert lives() is not None
    del alias
    gc.collect()
    assert lives() is None


SUPPORT = LibrarySupport(
    operator=(why_not_defined,),
    why_not_type=lambda node, name, type_: f"{name} is {type_}" if type_ == tensor(2, dtype=DType.INT4) else None,
    known_types="inputs",
    tables=(lambda node, function: "listed" if node.op == "Relu" else None,),
    query=lambda node, function: f"asked about {node.op}",
)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (one("Nonsense", tensor(2, dtype=DType.INT4)), "Nonsense is not an operator of opset 18"),
        (one("Relu", tensor(2, dtype=DType.INT4)), "x0 is int4[2]"),
        (one("Relu", tensor(2)), "listed"),
        (one("Abs", tensor(2)), "asked about Abs"),
        (one("Relu", None), "the type of 'x0' is not known before the run"),
    ],
)
def test_support_is_decided_by_operator_types_tables_and_library_in_this_order(function: Function, reason: str) -> None:
    assert SUPPORT.why_not(function.nodes[0], function) == reason


@pytest.mark.parametrize(
    ("result", "agrees"),
    [
        (tensor(2, 3), True),
        (TensorType(DType.FLOAT32), True),
        (tensor(2, 4), False),
        (tensor(2, 3, dtype=DType.INT64), False),
        ("u1", False),
    ],
)
def test_a_library_that_infers_another_type_disagrees(result: TensorType | str, agrees: bool) -> None:
    reason = explain_disagreement("It", "Relu", [result], [tensor(2, 3)])
    assert reason == (None if agrees else f"It takes the result of this Relu for {result}, where ONNX says float32[2,3]")


@pytest.mark.parametrize(
    ("applies", "reason"),
    [
        (attribute_is("size", 3), "is wrong"),
        (attribute_is("size", 5), "is wrong too"),
        (attribute_is("bias", 1, 1), "is wrong"),
        (lambda node, function: bool(node.inputs[2]), "is wrong too"),  # raises IndexError
    ],
)
def test_the_first_known_issue_that_applies_gives_the_reason(applies: Predicate, reason: str) -> None:
    issues = [KnownIssue(("LRN",), applies, "is wrong", ()), KnownIssue(("Relu", "LRN"), always, "is wrong too", ())]
    function = one("LRN", tensor(1, 2, 3, 3), size=3)
    assert match_known_issue(issues, function.nodes[0], function) == reason


LATER, DECIDES = "is known only when it is computed", "symbolic dims decide what"


def ask(inputs: Mapping[str, str], node: Node, output: str = "", constants: Mapping[str, Any] | None = None) -> str | None:
    """Return the answer for a node whose result is y."""
    function = graph({name: f"float32[{dims}]" for name, dims in inputs.items()}, {"y": "float32[?]"}, node, constants=constants)
    function = infer_shapes(function.replace(outputs=(Value("y"),)))
    if output:
        declared = graph({"y": f"float32[{output}]"}, {}).inputs
        function = function.replace(outputs=declared)
    assert has_symbolic_dims(function.nodes[0], function)
    return why_not_symbolic(function.nodes[0], function, SYMBOLIC_OPERATORS)


@pytest.mark.parametrize(
    ("inputs", "subject", "constants", "reason"),
    [
        ({"x": "N,3"}, node("Relu", "x", "y"), {}, None),
        ({"x": "N,3", "z": "N,3"}, node("Add", "x z", "y"), {}, None),
        ({"x": "N,3", "z": "3"}, node("Mul", "x z", "y"), {}, None),
        ({"x": "B,N,3", "z": "B,3,N"}, node("MatMul", "x z", "y"), {}, None),
        ({"x": "N,3", "z": "4,3", "c": "4"}, node("Gemm", "x z c", "y", transB=1), {}, None),
        ({"x": "N,3", "z": "N,2"}, node("Concat", "x z", "y", axis=1), {}, None),
        ({"x": "N,4"}, node("Reshape", "x k", "y"), {"k": i64([0, 2, 2])}, None),
        ({"x": "N,3"}, node("Slice", "x a b c", "y"), {"a": i64([0]), "b": i64([2]), "c": i64([1])}, None),
        ({"x": "N,M"}, node("Softmax", "x", "y", axis=0), {}, None),
        ({"x": "N,M"}, node("ReduceSum", "x k", "y"), {"k": i64([1])}, None),
        ({"x": "N,M"}, node("Transpose", "x", "y", perm=[1, 0]), {}, None),
        ({"x": "N,3,8,8", "w": "4,3,3,3"}, node("Conv", "x w", "y"), {}, None),
        ({"x": "?,3"}, node("Relu", "x", "y"), {}, LATER),
        ({"x": "N,3", "z": "M,3"}, node("Concat", "x z", "y", axis=0), {}, LATER),
        ({"x": "N,3,K", "z": "M,K,2"}, node("MatMul", "x z", "y"), {}, LATER),
        ({"x": "N,M", "z": "3,4"}, node("MatMul", "x z", "y"), {}, DECIDES),
        ({"x": "B,N,3", "z": "1,3,4"}, node("MatMul", "x z", "y"), {}, DECIDES),
        ({"x": "N,4"}, node("Reshape", "x k", "y"), {"k": i64([-1])}, LATER),
        ({"x": "N,3"}, node("Slice", "x a b", "y"), {"a": i64([0]), "b": i64([2])}, LATER),
        ({"x": "1,3,H,W", "w": "4,3,3,3"}, node("Conv", "x w", "y"), {}, LATER),
        ({"x": "N,3"}, node("NonZero", "x", "y"), {}, "NonZero is not computed with symbolic dims"),
    ],
    ids=str,
)
def test_what_is_the_same_at_every_size(inputs: Any, subject: Node, constants: Any, reason: str | None) -> None:
    text = ask(inputs, subject, constants=constants)
    assert text is None if reason is None else reason in str(text)


def test_a_declared_extent_that_does_not_follow_is_not_believed() -> None:
    constants = {"k": i64([1])}
    assert ask({"x": "N,M"}, node("ReduceSum", "x k", "y", keepdims=0), "N", constants) is None
    reason = ask({"x": "N,M"}, node("ReduceSum", "x k", "y", keepdims=0), "M", constants)
    assert reason == "the extents that the model declares for this ReduceSum do not follow from those of its inputs"
    function, fixed = (infer_shapes(one("Relu", tensor(extent), output=tensor(extent))) for extent in ("N", 3))
    assert why_not_symbolic(function.nodes[0], function, {"Neg"}) == "Relu is not computed with symbolic dims"
    assert not has_symbolic_dims(fixed.nodes[0], fixed)
