"""What a PlanError advises: the installed engine that takes what nobody in the list does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import xrt
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import EngineUnavailable, PlanError
from xrt.graph import Function, Node
from xrt.module.specialization import with_advice
from xrt.testing.corpus.entry import graph, node

MODEL = graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("Relu", "x", "t"), node("Abs", "t", "y"))
ERROR = PlanError("nobody takes them", tuple(node.name for node in MODEL.nodes))


@dataclass(frozen=True)
class Taking(GraphCompiler):
    """Takes nodes of one operator, or of any."""

    name: ClassVar[str] = "taking"
    op: str = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return None if self.op in ("", node.op_type) else "no"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        raise NotImplementedError


class Asked(dict[str, Any]):
    def __call__(self, name: str) -> GraphCompiler:
        self[name] = True
        if name == "missing":
            raise EngineUnavailable("it is not here")
        if name == "broken":
            return Taking(op=None)  # type: ignore[arg-type]  # it is asked, and says no to all
        return Taking(op="Relu" if name == "some" else "")


def test_the_first_that_takes_all_is_named() -> None:
    create = Asked()
    told = with_advice(ERROR, MODEL, ["listed"], ["listed", "missing", "broken", "some", "all", "late"], create)
    assert str(told) == "nobody takes them\n  engine 'all' is installed and takes them: add it to the list"
    assert list(create) == ["missing", "broken", "some", "all"]


def test_where_there_is_none_the_error_stays() -> None:
    assert with_advice(ERROR, MODEL, [], ["missing", "some"], Asked()) is ERROR


def test_an_error_about_something_else_asks_nobody() -> None:
    create = Asked()
    error = PlanError("a pin cannot be kept")
    assert with_advice(error, MODEL, [], ["all"], create) is error
    assert not create


def test_a_module_says_which_engine_to_add() -> None:
    gelu = node("QuickGelu", "x", "y", name="g", domain="com.microsoft")
    f = graph({"x": "float32[2]"}, {"y": "float32[2]"}, gelu).replace(opsets={"": 18, "com.microsoft": 1})
    module = xrt.XRTModule(f, engine=["openvino"])
    with pytest.raises(PlanError) as caught:
        _ = module.plan
    first, *rest, last = str(caught.value).splitlines()
    assert first == "no engine of the list (openvino, toy) takes 1 of 1 node; list an engine that takes them:"
    assert len(rest) == 1 and rest[0].startswith("  'g' (com.microsoft.QuickGelu): openvino: ")
    assert last == "  engine 'ort' is installed and takes them: add it to the list"


def test_a_pin_is_not_mended_by_another_engine() -> None:
    with pytest.raises(PlanError) as caught:
        _ = xrt.XRTModule(MODEL, engine=["ort"], pins=["Relu!=ort"], strict=True).plan
    assert "is installed" not in str(caught.value)
