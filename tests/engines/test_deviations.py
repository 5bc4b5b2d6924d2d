"""Deviations: what an engine declares about special values is reported where it applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from tools.write_numerics import PAGE, rewrite
from xrt import OpTable, XRTModule
from xrt.engines import Deviation
from xrt.engines.toy import KernelContext, Run, Toy
from xrt.errors import XRTError
from xrt.formats import text
from xrt.graph import Node
from xrt.verify.deviations import find_special_values, list_deviations

ops: OpTable[Any] = Toy.kernels.extend("losing")
NAN = "a NaN may come out as a number, or a number as NaN (Relu)"
RELU = text.parse("function main(x: float32[3]) -> (y: float32[3]) {\n opset ai.onnx 18\n y = Relu(x)\n}")
COUNT = text.parse("function main(x: int64[3]) -> (y: int64[3]) {\n opset ai.onnx 18\n y = Neg(x)\n}")


@ops("Relu", priority=9)
def relu(node: Node, ctx: KernelContext) -> Run:
    return lambda x: np.fmax(x, x.dtype.type(0))


@dataclass(frozen=True)
class Losing(Toy):
    """Returns 0 for the Relu of NaN."""

    name: ClassVar[str] = "losing"
    kernels: ClassVar[OpTable[Any]] = ops
    deviations: ClassVar[tuple[Deviation, ...]] = (Deviation("nan", ("Relu", "Max")), Deviation("integer"))


def test_those_of_the_operators_and_types_of_a_function_apply() -> None:
    assert list_deviations(Losing, RELU) == [Deviation("nan", ("Relu",))]
    assert list_deviations(Losing, COUNT) == [Deviation("integer")]
    assert list_deviations(Toy, RELU) == []


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (np.float32([1, -2, 0]), set()),
        (np.float32([1, np.nan]), {"nan"}),
        (np.float16([np.inf]), {"infinity", "float16"}),
        (np.float32([1e-40]), {"denormal"}),
        (np.int64([2**24 + 1]), {"integer"}),
        (np.int64([2**24]), set()),
        ([np.float32([np.inf]), np.zeros(0)], {"infinity", "empty"}),
    ],
)
def test_special_values_are_found(value: Any, kinds: set[str]) -> None:
    assert find_special_values([value]) == kinds


def test_explain_prints_them() -> None:
    with XRTModule(RELU, [Losing(native="off")]) as module:
        module(np.zeros(3, np.float32))
        text = str(module.explain())
    assert "deviates on special values: nan in Relu\n" in text + "\n"


def test_a_check_and_a_verification_name_them_as_the_likely_cause() -> None:
    x = np.float32([1, np.nan, -1])
    with XRTModule(RELU, [Losing(native="off")]) as module:
        assert f"likely a known deviation of engine 'losing': {NAN}" in str(module.verify(x))
        assert "known deviation" not in str(module.verify(np.nan_to_num(x)))
    with (
        XRTModule(RELU, [Losing(native="off")], check="first", strict=True) as module,
        pytest.raises(XRTError, match="known deviat"),
    ):
        module(x)


def test_the_page_lists_what_the_engines_declare() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewrite(page) == page
