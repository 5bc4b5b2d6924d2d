"""Verification of a plan, the smallest part that is wrong, reduced precision, packed weights, and the judgement in float64."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

import xrt
from tests.verify.wrong import Wrong, WronglyFusing, long_model, numbers
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, ExecutionOptions, GraphCompiler, RunOptions, create
from xrt.engines.contract import registry
from xrt.engines.contract.options import Precision
from xrt.engines.toolkit.reference_evaluator import REFERENCE, evaluate
from xrt.errors import CompileRefused, EngineError
from xrt.formats.onnx import load, save_case
from xrt.graph import Attribute, Constant, DType, Function, Node, OptionalType, TensorType, Value
from xrt.partition import partition
from xrt.runtime.inputs import copy_values
from xrt.testing.corpus.entry import graph, node
from xrt.verify import CheckVerdict, Verdict, bisect, verify
from xrt.verify.comparison import OutputJudge, find_precision, widen
from xrt.verify.execution import Stopped, run_alone

pytestmark = pytest.mark.sample(3)


@pytest.mark.slow
def test_a_right_plan_is_verified() -> None:
    with xrt.XRTModule(long_model(count=20, at=7), engine=["ort", "toy"], pins=["Sin=toy"]) as module:
        report = module.verify(numbers())
        assert module.bisect(numbers()) is None
    assert report
    assert len(report.regions) == len(module.plan.launches) > 1
    assert all(region.judgement.verdict is Verdict.AGREES for region in report.regions)
    inner = [check.name for region in report.regions for check in region.inner]
    assert set(inner) <= {f"v{i}" for i in range(1, 21)} and inner


@pytest.mark.full
def test_a_wrong_kernel_is_found_in_its_region_and_reduced_to_its_node() -> None:
    with xrt.XRTModule(long_model(), engine=[Wrong(native="off"), "ort"], maximum_nodes=40) as module:
        report, culprit = module.verify(numbers()), module.bisect(numbers())
    assert not report
    assert [region.name for region in report.differing] == ["xrt_wrong_2"]
    (region,) = report.differing
    assert region.differing[0].node == "n117" and region.differing[0].op == "Atan"
    assert "inside, first at node 'n117' (Atan)" in str(report)
    assert report.to_dict()["regions"][2]["judgement"]["verdict"] == "disagrees"
    assert [node.name for node in culprit.function.nodes] == ["n117"]
    assert culprit.runs < 30
    assert str(culprit).startswith("wrong{native=off} differs on 1 node: 'n117' (Atan): v118 differs in 32 of 32 elements")
    np.testing.assert_allclose(culprit.expected[0], np.arctan(culprit.inputs[0]), rtol=1e-6)


@pytest.mark.full
def test_regions_get_right_inputs_and_the_whole_gets_wrong_ones() -> None:
    seen: list[tuple[int, int]] = []
    with xrt.XRTModule(long_model(at=0, count=12), engine=Wrong(native="off"), maximum_nodes=4) as module:
        report = module.verify(numbers(), inner=False, progress=lambda done, count: seen.append((done, count)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [region.judgement.verdict for region in report.regions] == [Verdict.DISAGREES, Verdict.AGREES, Verdict.AGREES]
    assert report.whole.verdict is Verdict.DISAGREES
    assert not any(region.inner for region in report.regions)


@pytest.mark.full
def test_what_an_engine_writes_to_is_a_copy() -> None:
    """Arrays in a list were handed over as they are."""
    first = np.zeros(2, "float32")
    theirs = copy_values([first, [first], None])
    theirs[0][...] = theirs[1][0][...] = 7
    assert not first.any() and theirs[2] is None


@pytest.mark.full
def test_a_wrong_fusion_is_reduced_to_the_nodes_that_it_takes() -> None:
    model = long_model(special="Sin", at=77, count=200)  # the one Sin that a Cos reads
    with xrt.XRTModule(model, engine=WronglyFusing(native="off")) as module:
        culprit = module.bisect(numbers())
    assert [node.name for node in culprit.function.nodes] == ["n77", "n78"]


@pytest.mark.full
def test_an_error_that_is_lost_on_its_way_out_is_found_all_the_same() -> None:
    model = long_model(count=10, at=3)
    lost = xrt.Node("Mul", ("v10", "zero"), ("y",), name="last")
    zero = xrt.graph.Constant(np.zeros((), np.float32))
    model = model.replace(nodes=(*model.nodes, lost), outputs=(xrt.Value("y", model.outputs[0].type),), constants={"zero": zero})
    with xrt.XRTModule(model, engine=Wrong(native="off"), fold_constants=False) as module:
        assert module.verify(numbers()).whole.verdict is Verdict.AGREES
        culprit = module.bisect(numbers())
    assert culprit is not None and [node.name for node in culprit.function.nodes] == ["n3"]


@pytest.mark.full
def test_a_culprit_is_written_as_onnx_writes_its_cases(tmp_path: Path) -> None:
    with xrt.XRTModule(long_model(count=8, at=2), engine=Wrong(native="off")) as module:
        culprit = module.bisect(numbers())
    save_case(culprit.function, culprit.inputs, culprit.expected, tmp_path / "case")
    (node,) = load(tmp_path / "case" / "model.onnx").nodes
    assert node.op_type == "Atan"
    data = tmp_path / "case" / "test_data_set_0"
    values, due = (onnx.numpy_helper.to_array(onnx.load_tensor(data / name)) for name in ("input_0.pb", "output_0.pb"))
    np.testing.assert_array_equal(values, culprit.inputs[0])
    np.testing.assert_array_equal(due, culprit.expected[0])


@pytest.mark.full
def test_what_is_neither_tensor_nor_list_is_no_case(tmp_path: Path) -> None:
    with pytest.raises(
        xrt.errors.ModelError, match=r"^'v0' is a NoneType; a case holds tensors, maps, and lists of one of these$"
    ):
        save_case(long_model(count=1), [None], [numbers()], tmp_path)


RANDOM = np.random.default_rng(7)
ROWS, INNER, COLUMNS = 5, 80, 24
"""The last block of 32 has 16 numbers."""


def make_packed(bits: int = 4, block: int = 32, *, level: int = 0, dtype: str = "float32", **parts: bool) -> Function:
    """A product with packed weights, and a Tanh behind it; ``parts`` are zeros, floats (zero points so), groups and bias."""
    count = -(-INNER // block)
    constants: dict[str, Any] = {
        "packed": RANDOM.integers(0, 256, (COLUMNS, count, block * bits // 8), dtype=np.uint8),
        "scales": (0.02 * RANDOM.random((COLUMNS, count)) + 0.01).astype(dtype),
    }
    inputs = ["x", "packed", "scales", "", "", ""]
    if parts.get("zeros"):
        constants["zeros"] = RANDOM.integers(0, 256, (COLUMNS, (count * bits + 7) // 8), dtype=np.uint8)
    if parts.get("floats"):
        constants["zeros"] = (RANDOM.integers(0, 2**bits, (COLUMNS, count))).astype(dtype)
    if parts.get("groups"):
        constants["groups"] = RANDOM.permutation(np.arange(count * block) // block)[:INNER].astype(np.int32)
    if parts.get("bias"):
        constants["bias"] = RANDOM.standard_normal(COLUMNS).astype(dtype)
    for place, name in ((3, "zeros"), (4, "groups"), (5, "bias")):
        inputs[place] = name if name in constants else ""
    while not inputs[-1]:
        inputs.pop()
    results = {"K": INNER, "N": COLUMNS, "bits": bits, "block_size": block, "accuracy_level": level}
    attributes = tuple(Attribute.create(name, value) for name, value in sorted(results.items()))
    nodes = (
        Node("MatMulNBits", tuple(inputs), ("h",), attributes, domain="com.microsoft", name="packed_product"),
        Node("Tanh", ("h",), ("y",), name="tanh"),
    )
    x = Value("x", TensorType(DType.parse(dtype), (ROWS, INNER)))
    held = {name: Constant(array) for name, array in constants.items()}
    return Function((x,), (Value("y"),), nodes, held, {"": 21, "com.microsoft": 1}, name="packed")


def draw(function: Function) -> np.ndarray[Any, Any]:
    type_ = function.inputs[0].type
    return (0.5 * RANDOM.standard_normal((ROWS, INNER))).astype(type_.dtype.numpy)


FORMS: dict[str, dict[str, Any]] = {
    "4 bits": {},
    "8 bits": {"bits": 8},
    "2 bits": {"bits": 2},
    "zero points": {"zeros": True},
    "zero points in floats": {"floats": True},
    "groups": {"groups": True},
    "bias": {"bias": True, "zeros": True},
    "float16": {"dtype": "float16"},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_packed_weights_are_verified_at_the_tolerance_of_floats(form: dict[str, Any], tmp_path: Path) -> None:
    function = make_packed(**form)
    with xrt.XRTModule(function, ["ort"], cache=tmp_path, threads=1) as m:
        report = m.verify(draw(function))
    assert report, str(report)
    assert [item.judgement.verdict for item in report.regions[0].inner] == [Verdict.AGREES] * 2


def test_what_a_deprecated_form_means_is_left_open(tmp_path: Path) -> None:
    """ONNX Runtime and the description of its operator disagree on zero points with blocks of rows."""
    function = make_packed(groups=True, zeros=True)
    text = r"^engine 'toy' does not support node 'packed_product' \(com.microsoft.MatMulNBits\): the onnx package has no "
    with xrt.XRTModule(function, ["ort"], cache=tmp_path, threads=1) as m, pytest.raises(CompileRefused, match=text):
        m.verify(draw(function))


@pytest.mark.full
def test_a_product_in_bytes_is_coarse_and_is_not_wrong(tmp_path: Path) -> None:
    """Its accuracy level allows ONNX Runtime to round the other operand to bytes."""
    exact, coarse = make_packed(), make_packed(level=4)
    x = draw(exact)
    (right,) = evaluate(coarse, [x])
    with xrt.XRTModule(coarse, ["ort"], cache=tmp_path, threads=1) as m:
        error = float(np.abs(m(x) - right).max())
        assert m.verify(x)
        assert m.bisect(x) is None
    assert error < 0.05


@dataclass(frozen=True)
class Faulty(GraphCompiler):
    """Computes as the reference does, and adds a share to every number; its spec says that it is in bf16, or nothing."""

    name: ClassVar[str] = "faulty"
    share: float = 0.0
    precision: str = "fp32"
    honors: str = "fp32"

    def why_not(self, node: Node, function: Function) -> str | None:
        return None

    def version(self) -> str:
        return "1"

    def unsupported_options(self, context: CompileContext) -> str | None:
        return None if context.options.precision in ("fp32", self.honors) else "it is not honored"

    def with_precision(self, precision: Precision) -> Faulty | None:
        return self if precision == self.precision else None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return _Off(function, self.share)


class _Off(Executable):
    def __init__(self, function: Function, share: float) -> None:
        self.function, self.share = function, share

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        return [(value * np.float32(1 + self.share)).astype(value.dtype) for value in evaluate(self.function, inputs)]


def check(engine: Faulty, allowed: Precision = "fp32", function: Function | None = None) -> Any:
    function = function or make_packed()
    context = CompileContext(ExecutionOptions(precision=allowed), threads=1)
    plan = partition(function, [engine])
    return verify(function, plan, {engine.spec: engine}, [draw(function)], evaluate, context)


def test_an_error_in_packed_weights_is_found() -> None:
    result = check(Faulty(share=0.02))
    assert not result
    assert result.regions[0].differing[0].node == "packed_product"
    assert not check(Faulty(share=0.3), function=make_packed(level=4))  # more than bytes explain


def test_a_reference_that_fails_on_inner_values_is_not_blamed_on_the_engine() -> None:
    def compute(function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
        if len(function.outputs) > 1:
            raise EngineError("the reference fails")
        return evaluate(function, inputs)

    function, engine = long_model(count=4, at=9), Faulty()
    plan = partition(function, [engine])
    with pytest.raises(EngineError, match=r"^the reference fails$"):
        verify(function, plan, {engine.spec: engine}, [numbers()], compute, CompileContext(threads=1))


@pytest.mark.parametrize(
    ("engine", "allowed"),
    [(Faulty(share=0.004, precision="bf16"), "fp32"), (Faulty(share=0.004, honors="bf16"), "bf16")],
    ids=["by its spec", "by the options"],
)
def test_an_engine_in_lower_precision_has_the_tolerance_of_it(engine: Faulty, allowed: Precision) -> None:
    context = CompileContext(ExecutionOptions(precision=allowed))
    assert find_precision(engine, context) == "bf16"
    result = check(engine, allowed)
    assert result
    assert result.whole.message.startswith("in bf16, off by 0.00")
    assert bisect(make_packed(), engine, [draw(make_packed())], evaluate, context) is None
    assert not check(replace(engine, share=0.3), allowed)


def test_an_engine_that_does_not_honor_it_has_the_tolerance_of_float32() -> None:
    assert find_precision(Faulty(share=0.004), CompileContext(ExecutionOptions(precision="bf16"))) == "fp32"
    assert not check(Faulty(share=0.004), "bf16")
    exact = create("openvino{precision=fp32}")
    assert find_precision(exact, CompileContext(ExecutionOptions(precision="bf16"))) == "fp32"


@pytest.mark.full
def test_a_check_of_calls_keeps_an_engine_in_lower_precision() -> None:
    function = graph({"x": "float32[3,4]"}, {"y": "float32[3,4]"}, node("Tanh", "x", "y"))
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    with xrt.XRTModule(function, [Faulty(share=0.004, precision="bf16")], cache=CompileCache(), check="first") as m:
        np.testing.assert_allclose(m(x), np.tanh(x) * 1.004, rtol=1e-6)
        assert [launch.engine for launch in m.plan.launches] == [Faulty(share=0.004, precision="bf16").spec]
    with (
        pytest.warns(xrt.errors.FallbackWarning),
        xrt.XRTModule(function, [Faulty(share=0.004), REFERENCE], cache=CompileCache(), check="first") as m,
    ):
        np.testing.assert_allclose(m(x), np.tanh(x), rtol=1e-6)


SQUARES = graph(
    {"x": "float32[2]", "y": "float32[2]"},
    {"z": "float32[2]"},
    node("Mul", "x x", "a"),
    node("Mul", "y y", "b"),
    node("Sub", "a b", "z"),
)
INPUTS = [np.array([1000.1, 3], np.float32), np.array([1000.05, 3], np.float32)]
EXACT = float(INPUTS[0][0]) ** 2 - float(INPUTS[1][0]) ** 2


class Counted:
    """The reference, and how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        self.runs += 1
        return run_alone(registry.create("toy{native=off}"), function, inputs)


def judge(function: Function, inputs: Sequence[Any], *results: Any) -> CheckVerdict:
    run = Counted()
    expected = run(function, inputs)
    return OutputJudge(function, inputs, run).judge(
        [np.array(x, y.dtype) for x, y in zip(results, expected, strict=True)], expected
    )


def test_cancellation_is_explained_by_ten_times_the_error_of_the_reference() -> None:
    run = Counted()
    (expected,) = run(SQUARES, INPUTS)
    error = abs(float(expected[0]) - EXACT)
    assert error > 1e-3
    assert judge(SQUARES, INPUTS, [EXACT + 8 * error, 0]).verdict is Verdict.ROUNDING
    for wrong in ([EXACT + 12 * error, 0], [np.nan, 0], [np.inf, 0], [EXACT, 20 * error]):
        assert judge(SQUARES, INPUTS, wrong).verdict is Verdict.DISAGREES


def test_an_optional_without_a_value_excuses_and_accuses_nothing() -> None:
    kind = OptionalType(TensorType(DType.FLOAT32, (2,)))
    both = SQUARES.replace(
        inputs=(*SQUARES.inputs, Value("o", kind)),
        outputs=(*SQUARES.outputs, Value("p", kind)),
        nodes=(*SQUARES.nodes, Node("Identity", ("o",), ("p",))),
    )
    run, inputs = Counted(), [*INPUTS, None]
    expected = run(both, inputs)
    near = np.array([EXACT + 8 * abs(float(expected[0][0]) - EXACT), 0], np.float32)
    assert OutputJudge(both, inputs, run).judge([near, None], expected).verdict is Verdict.ROUNDING
    assert OutputJudge(both, inputs, run).judge([near, near], expected).verdict is Verdict.DISAGREES


def test_an_agreement_takes_no_further_run() -> None:
    run, stop = Counted(), threading.Event()
    expected = run(SQUARES, INPUTS)
    stop.set()
    judge = OutputJudge(SQUARES, INPUTS, run, stop.is_set)
    assert judge.judge(expected, expected).verdict is Verdict.AGREES
    with pytest.raises(Stopped):
        judge.judge([expected[0] + 50], expected)
    assert run.runs == 1


def test_a_row_that_cancels_does_not_excuse_the_others() -> None:
    shape = "float32[16,64]"
    draw = np.random.default_rng(0)
    x, y = (draw.uniform(0.5, 1, (16, 64)).astype(np.float32) for _ in range(2))
    y[0] = x[0] * np.float32(1 - 60 * np.finfo(np.float32).eps)
    normed = graph(
        {"x": shape, "y": shape},
        {"z": shape},
        node("Mul", "x x", "a"),
        node("Mul", "y y", "b"),
        node("Sub", "a b", "c"),
        node("ReduceL2", "c axes", "n", keepdims=1),
        node("Div", "c n", "z"),
        constants={"axes": np.array([1])},
    )
    (expected,) = Counted()(normed, [x, y])
    for place in (-1, 1):
        wrong = expected.copy()
        wrong[place, -1] = 0
        assert judge(normed, [x, y], wrong).verdict is Verdict.DISAGREES


def test_values_of_bodies_attributes_and_constants_become_float64() -> None:
    model = graph(
        {"x": "float16[3]"},
        {"y": "float16[3]"},
        node("Cast", "x", "a", to=1),
        node("Mul", "a c", "b"),
        node("Cast", "b", "y", to=10),
        constants={"c": np.array([1 / 3, 2, 3], np.float32)},
    )
    (y,) = Counted()(widen(model), [np.array([1, 1e-9, 1e6])])
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, np.array([1, 1e-9, 1e6]) * np.array([1 / 3, 2, 3], np.float32), rtol=1e-15)
