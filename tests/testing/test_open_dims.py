"""Cases whose sizes become symbolic dims: what is opened, which other sizes are tried, and who is caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.errors import CompileRefused
from xrt.graph import Function, TensorType
from xrt.testing.conformance import ResultWord, conform
from xrt.testing.corpus.entry import f32, graph, i64, node
from xrt.testing.fault_injection import ObservedExecutable, RecordingEngine
from xrt.testing.open_dims import Opening, list_other_sizes, open_dims

PRODUCT = graph(
    {"a": "float32[2,3]", "b": "float32[3,2]", "c": "float32[1,2]"}, {"y": "float32[2,2]"}, node("Gemm", "a b c", "y")
)
OPERANDS = [np.ones((2, 3), "float32"), np.ones((3, 2), "float32"), np.ones((1, 2), "float32")]


class FirstSizes(ObservedExecutable):
    """Results of the sizes of the first run."""

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        results = self.inner.run(inputs)
        shapes = self.__dict__.setdefault("shapes", [result.shape for result in results])
        return [np.resize(result, shape) for result, shape in zip(results, shapes, strict=True)]


@dataclass(frozen=True)
class Frozen(RecordingEngine):
    """An engine that says that its executables serve all sizes, which is wrong."""

    supports_dynamic_shapes: ClassVar[bool] = True

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return FirstSizes(self._engine.compile(function, context), self.journal)


@dataclass(frozen=True)
class Flexible(RecordingEngine):
    """An engine whose executables do serve all sizes."""

    supports_dynamic_shapes: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("opening", "shapes"),
    [
        ("every", [("a_0", "a_1"), ("b_0", "b_1"), ("c_0", "c_1")]),
        ("equal", [("n2", "n3"), ("n3", "n2"), (1, "n2")]),
        ("first", [("n2", 3), ("n3", 2), ("n1", 2)]),
    ],
)
def test_what_is_opened(opening: Opening, shapes: list[Any]) -> None:
    opened = open_dims(PRODUCT, OPERANDS, opening)
    assert [value.type.shape for value in opened.inputs if isinstance(value.type, TensorType)] == shapes


def test_what_has_no_extents_is_not_opened() -> None:
    with pytest.raises(CompileRefused, match=r"^no input has a size that can be a symbolic dim$"):
        open_dims(graph({"x": "float32[]"}, {"y": "float32[]"}, node("Neg", "x", "y")), [f32(1)], "every")


def test_other_sizes_are_those_that_the_reference_takes() -> None:
    result = list_other_sizes(open_dims(PRODUCT, OPERANDS, "equal"), OPERANDS)
    assert [[value.shape for value in sized.values] for sized in result] == [[(4, 6), (6, 4), (1, 4)], [(1, 1), (1, 1), (1, 1)]]
    assert [sized.expected[0].tolist() for sized in result] == [np.full((4, 4), 7).tolist(), [[2.0]]]
    reshaped = graph({"x": "float32[2,3]"}, {"y": "float32[3,2]"}, node("Reshape", "x k", "y"), constants={"k": i64([3, 2])})
    assert list_other_sizes(open_dims(reshaped, OPERANDS[:1], "every"), OPERANDS[:1]) == []


def test_float64_that_passes_through_float32_is_held_to_float32() -> None:
    scaled = graph({"x": "float64[2]"}, {"y": "float64[2]"}, node("Cast", "x", "t", to=1), node("Cast", "t", "y", to=11))
    attended = node("FlexAttention", "x x x", "y", domain="ai.onnx.preview")  # its definition casts the scale to float32
    attention = graph({"x": "float64[1,2,3,4]"}, {"y": "float64[1,2,3,4]"}, attended, opset=26)
    attention = attention.replace(opsets={"": 26, "ai.onnx.preview": 1})
    plain = graph({"x": "float64[2]"}, {"y": "float64[2]"}, node("Neg", "x", "y"))
    for function, may_round in [(scaled, True), (attention, True), (plain, False)]:
        inputs = [np.ones(value.type.shape) for value in function.inputs]
        sized = list_other_sizes(open_dims(function, inputs, "every"), inputs)[0]
        executable: Any = SimpleNamespace(run=lambda values, results=sized.expected: [result * (1 + 1e-6) for result in results])
        assert bool(sized.compare(executable, RecordingEngine())) == may_round


@pytest.mark.parametrize(
    ("engine", "word"), [(Flexible(), ResultWord.PASSED), (Frozen(), ResultWord.FAILED), (RecordingEngine(), ResultWord.DECLINED)]
)
@pytest.mark.parametrize("opening", ["every", "equal", "first"])
def test_who_claims_all_sizes_is_tried_at_several(engine: GraphCompiler, word: ResultWord, opening: Opening) -> None:
    report = conform(engine, "test_relu,test_add,test_softmax_axis_1", groups=["node"], opening=opening)
    assert {outcome.word for outcome in report.outcomes} == {word}
    if word is ResultWord.FAILED:
        assert "at [" in report.outcomes[0].reason


@pytest.mark.parametrize(
    ("inputs", "made"),
    [
        ({"x": "2,1,5,5", "w": "1,1,3,3"}, node("Conv", "x w", "y", kernel_shape=[3, 3])),
        ({"x": "2,3,4", "s": "3", "b": "3", "m": "3", "v": "3"}, node("BatchNormalization", "x s b m v", "y")),
        ({"x": "2,3,4", "s": "3", "b": "3"}, node("InstanceNormalization", "x s b", "y")),
    ],
    ids=["window", "batch", "instance"],
)
def test_weights_keep_the_sizes_that_their_node_says(inputs: dict[str, str], made: Any) -> None:
    function = graph({name: f"float32[{dims}]" for name, dims in inputs.items()}, {"y": "float32[?,?,?]"}, made)
    values = [np.ones([int(size) for size in dims.split(",")], "float32") for dims in inputs.values()]
    opened = open_dims(function, values, "every")
    for sized in list_other_sizes(opened, values):
        channels = sized.values[0].shape[1]
        others = [value.shape for value in sized.values[1:]]
        assert all(shape in ((channels,), (1, 1, 3, 3), (channels, 1, 3, 3), (2, 1, 3, 3)) for shape in others)
