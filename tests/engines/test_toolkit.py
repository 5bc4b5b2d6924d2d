"""The toolkit for authors of engines: support of nodes, texts of errors and aliases of memory."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from tests.engines.written import one, tensor
from xrt.engines.toolkit.known_issues import KnownIssue, Test, always, attribute_is, match_known_issue
from xrt.engines.toolkit.libraries import remove_noise, shorten
from xrt.engines.toolkit.scatters import make_writable_alias
from xrt.engines.toolkit.support import LibrarySupport, explain_disagreement, why_not_defined
from xrt.graph import DType, Function, TensorType


def test_noise_is_removed_from_one_line() -> None:
    text = "Exception from src/core.cpp:105:\n  Check 'ok' failed at a.cpp:1:\n\tNo rule for: Net.  "
    assert remove_noise(text, (r"Exception from \S+:\d+: ", r"Check '.*?' failed at \S+:\d+: ")) == "No rule for: Net"
    assert remove_noise("Check failed at a.cpp:1:", (r"Check failed at \S+:\d+: ",)) == ""


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
    typed="inputs",
    tables=(lambda node, function: "listed" if node.op == "Relu" else None,),
    answer=lambda node, function: f"asked about {node.op}",
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
def test_the_first_known_issue_that_applies_gives_the_reason(applies: Test, reason: str) -> None:
    issues = [KnownIssue(("LRN",), applies, "is wrong", ()), KnownIssue(("Relu", "LRN"), always, "is wrong too", ())]
    function = one("LRN", tensor(1, 2, 3, 3), size=3)
    assert match_known_issue(issues, function.nodes[0], function) == reason
