"""Special numbers: what an engine loses is found, and what it says to lose is held against it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from xrt import OpTable, XRTModule
from xrt.engines.contract import registry
from xrt.engines.toy import KernelContext, Run, Toy
from xrt.formats import text
from xrt.graph import Node
from xrt.testing.contract import Contract
from xrt.testing.special_values import SPECIALS, make_special_cases
from xrt.testing.spikes import SPIKES, find_spiked
from xrt.verify.execution import run_alone

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "numerics.md"

ops: OpTable[Any] = Toy.kernels.extend("losing")


@ops("Relu", priority=9)
def relu(node: Node, env: KernelContext) -> Run:
    return lambda x: np.fmax(x, x.dtype.type(0))


@ops("Abs", priority=9)
def absolute(node: Node, env: KernelContext) -> Run:
    return lambda x: np.minimum(np.abs(x), np.finfo(x.dtype).max)


@dataclass(frozen=True)
class Losing(Toy):
    """Loses NaN in Relu and infinities in Abs, and says nothing of it."""

    name: ClassVar[str] = "losing"
    kernels: ClassVar[OpTable[Any]] = ops


@dataclass(frozen=True)
class Honest(Losing):
    name: ClassVar[str] = "honest"
    loses_nan: ClassVar[tuple[str, ...]] = ("Relu",)
    loses_infinity: ClassVar[tuple[str, ...]] = ("Abs",)
    spreads_nan: ClassVar[tuple[str, ...]] = ("LRN",)


@dataclass(frozen=True)
class Modest(Honest):
    name: ClassVar[str] = "modest"
    loses_nan: ClassVar[tuple[str, ...]] = ("Relu", "Tanh")


@ops("LRN", priority=9)
def lrn(node: Node, env: KernelContext) -> Run:
    """LRN with a running sum, which no NaN leaves again."""
    right = next(kernel for kernel in Toy.kernels if kernel.op_type == "LRN").code(node, env)
    return lambda x: right(x) + 0 * np.cumsum(x, axis=1)


class OfLosing(Contract):
    engine = Losing(native="off")


class OfHonest(Contract):
    engine = Honest(native="off")


class OfModest(Contract):
    engine = Modest(native="off")


def test_a_lost_number_is_found_and_how_to_declare_it_reported() -> None:
    with pytest.raises(AssertionError, match=r"(?s)Relu-18-float32: y0 differs.*name Relu in the engine's loses_nan\n"):
        OfLosing().test_special_numbers("Relu-18-float32")
    with pytest.raises(AssertionError, match=r"(?s)Abs-18-float64: .*name Abs in the engine's loses_infinity\n"):
        OfLosing().test_special_numbers("Abs-18-float64")


@pytest.mark.parametrize("name", ["Relu-18-float32", "Abs-18-float16", "Tanh-18-float32", "Conv[[1,1]]-Relu-18-float32"])
def test_what_is_declared_may_be_lost(name: str) -> None:
    OfHonest().test_special_numbers(name)


def test_nothing_but_what_is_declared_may_differ() -> None:
    one = make_special_cases("Relu-18-float32")
    expected = run_alone(Toy(native="off"), one.function, one.inputs)
    wrong = [array + 1 for array in expected]
    assert one.judge(expected, expected)
    assert not one.judge(wrong, expected, ["nan"])
    assert not one.judge([np.where(np.isinf(array), 5, array) for array in expected], expected, ["nan"])


def test_a_nan_that_spreads_is_found_and_how_to_declare_it_reported() -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)LRN-18-0: y with nan in place 7 of x differs .*name LRN in the engine's spreads_nan\n"
    ):
        OfLosing().test_one_special_number_among_ordinary_ones("LRN-18-0")
    OfHonest().test_one_special_number_among_ordinary_ones("LRN-18-0")


def test_what_depends_on_the_order_of_a_sum_is_open() -> None:
    one = find_spiked("GlobalAveragePool-18-8")
    expected = [result for call in one.calls for result in run_alone(Toy(native="off"), one.function, call)]
    assert one.judge(expected, expected)
    assert one.judge([np.where(np.isinf(array), np.nan, array) for array in expected], expected)
    assert not one.judge([np.where(np.isnan(array), 1, array) for array in expected], expected)
    assert not one.judge([np.where(np.isfinite(array), np.nan, array) for array in expected], expected)


def test_a_product_with_a_weight_of_zero_may_be_left_out() -> None:
    one = next(one for one in SPIKES if one.name.startswith("Gemm-18") and one.function.nodes[0].attr("beta") == 0)
    expected = [result for call in one.calls for result in run_alone(Toy(native="off"), one.function, call)]
    with np.errstate(invalid="ignore"):
        spread = [array + 0 * call[2] for call, array in zip(one.calls, expected, strict=True)]
    assert one.judge(spread, expected)


def test_names_of_single_numbers_tell_cases_apart() -> None:
    assert len({one.name for one in SPIKES}) == len(SPIKES)


def test_a_declaration_that_does_not_hold_is_found() -> None:
    OfHonest().test_special_numbers_are_lost_where_it_says_so()
    with pytest.raises(AssertionError, match=r"^loses_nan names operators that lose none: Tanh; take them out"):
        OfModest().test_special_numbers_are_lost_where_it_says_so()


def test_a_person_is_informed() -> None:
    function = make_special_cases("Relu-18-float32").function
    with XRTModule(function, [Honest()]) as module:
        module(*make_special_cases("Relu-18-float32").inputs)
        told = str(module.explain())
    assert "NaN is not carried through Relu: something else may come out in its place" in told
    assert "infinity" not in told
    assert "NaN spreads" not in told


def test_a_report_says_where_nan_spreads() -> None:
    one = find_spiked("LRN-18-0")
    with XRTModule(one.function, [Honest()]) as module:
        module(*one.ordinary)
        told = str(module.explain())
    assert "NaN spreads in LRN: it may come out where a number is due" in told


@pytest.mark.parametrize("name", ["iree", "openvino", "ort", "toy", "torch", "tvm", "xla"])
def test_the_page_of_numerics_lists_what_engines_lose(name: str) -> None:
    kind = registry.engine_class(name)
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    row = next(row for row in rows if f"`{name}`" in row[1] and len(row) == 6)
    told = [tuple(sorted(set(re.findall(r"\b[A-Z]\w*[A-Za-z]\b", cell)) - {"XLA"})) for cell in row[2:5]]
    assert told == [kind.loses_nan, kind.loses_infinity, kind.spreads_nan]


@pytest.mark.parametrize("name", ["iree", "openvino", "ort", "toy", "torch", "tvm", "xla"])
def test_the_page_of_numerics_lists_who_counts_denormals_as_zero(name: str) -> None:
    told = re.search(rf"on `{name}` in ([\w, ]+)[;.]", PAGE.read_text(encoding="utf-8").partition("A denormal number")[2])
    assert tuple(told[1].split(", ") if told else ()) == registry.engine_class(name).flushes_denormals


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iree", "xla"])
def test_denormals_that_are_declared_count_as_zero(name: str) -> None:
    one = text.parse("function main(x: float32[64]) -> (y: float32[64]) {\n opset ai.onnx 18\n y = Mul(x, x)\n}")
    assert not run_alone(registry.create(name), one, [np.full(64, 1e-20, np.float32)])[0].any()


def test_names_tell_cases_apart_and_numbers_meet_each_other() -> None:
    assert len({one.name for one in SPECIALS}) == len(SPECIALS)
    a, b = make_special_cases("Add-of2-18-float32").inputs[-2:]
    met = {(np.float32(x).tobytes(), np.float32(y).tobytes()) for x, y in zip(a, b, strict=True)}
    assert len(met) == 64


def test_the_reference_agrees_with_numpy() -> None:
    for name, fold in (("ReduceMax[0]-rows-18-float32", np.max), ("ReduceMin[0]-rows-18-float32", np.min)):
        one = make_special_cases(name)
        expected = [fold(x, axis=1) for x in one.inputs]
        assert one.judge(run_alone(Toy(native="off"), one.function, one.inputs), expected)
    one = make_special_cases("Relu-18-float32")
    assert one.judge(run_alone(Toy(native="off"), one.function, one.inputs), [np.maximum(x, 0) for x in one.inputs])
