"""One program for all sizes, or one for each: who decides, what is said, and what a later module finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from xrt.cache import CompileCache, open_disk_tier
from xrt.errors import InputError, OptionError
from xrt.formats import onnx
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.partition.partitioner import map_nodes_to_engines
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import RecordingEngine

OPEN = {"x": "float32[N,3]"}, {"y": "float32[N,3]"}
NODES = node("Relu", "x", "a", name="relu"), node("Neg", "a", "y", name="neg")
MODEL = graph(*OPEN, *NODES, opset=20).replace(name="model")


@dataclass(frozen=True)
class Flexible(RecordingEngine):
    """The reference; it can do with symbolic dims, as far as it is told."""

    name: ClassVar[str] = "flexible"
    supports_dynamic_shapes: ClassVar[bool] = True

    slow: bool = False
    """Whether sizes are worth a compile."""
    declines: str = ""
    """An operator that it needs sizes for."""

    def why_not(self, node: Node, function: Function) -> str | None:
        is_open = not all(getattr(function.get_type(name), "is_static", False) for name in node.inputs)
        if node.op == self.declines and is_open:
            return f"it needs sizes for {node.op}"
        return super().why_not(node, function)

    def why_not_dynamic(self, function: Function) -> str | None:
        return "it is twice as quick at fixed sizes" if self.slow else None


def list_compiled_types(engine: RecordingEngine) -> list[str]:
    return [str(function.inputs[0].type) for function in engine.journal.compiled]


def call(module: xrt.XRTModule, rows: int) -> dict[str, str]:
    """Call the module, and return which engine each node was on."""
    values = np.arange(rows * 3, dtype="float32").reshape(rows, 3) - 7
    np.testing.assert_array_equal(module(values), -np.maximum(values, 0))
    return map_nodes_to_engines(module.plan)


def make(*engines: Any, **options: Any) -> xrt.XRTModule:
    return xrt.XRTModule(MODEL, list(engines), **{"cache": CompileCache(), **options})


ALL = "one program for each set of sizes: "
FEW = "one program for each bucket of sizes: "


def test_one_program_serves_all_sizes_where_nothing_speaks_against_it() -> None:
    engine = Flexible()
    with make(engine) as module:
        assert {engine for rows in (5, 1, 700) for engine in call(module, rows).values()} == {"flexible"}
        assert ALL not in str(module.explain())
    assert list_compiled_types(engine) == ["float32[5,3]", "float32[N,3]"]


@pytest.mark.parametrize("shapes", ["auto", "one"])
def test_a_call_without_elements_has_a_program_of_its_own(shapes: str) -> None:
    engine = Flexible()
    with make(engine, shapes=shapes) as module:
        assert [call(module, rows) for rows in (5, 1, 0, 2)] == [{"relu": "flexible", "neg": "flexible"}] * 4
    first = ["float32[5,3]"] if shapes == "auto" else []
    assert list_compiled_types(engine) == [*first, "float32[N,3]", "float32[0,3]"]


def test_an_input_that_never_has_elements_is_no_size() -> None:
    engine, unused = Flexible(), Value("none", TensorType(DType.FLOAT32, (0,)))
    with xrt.XRTModule(MODEL.replace(inputs=(*MODEL.inputs, unused)), [engine], cache=CompileCache()) as module:
        for rows in (5, 1, 2, 3):
            module(np.ones((rows, 3), "float32"), np.zeros(0, "float32"))
    assert list_compiled_types(engine) == ["float32[5,3]", "float32[N,3]"]


@pytest.mark.parametrize(
    ("engine", "options", "compiles", "reason"),
    [
        (Flexible(slow=True), {}, 3, "it is twice as quick at fixed sizes"),
        (Flexible(slow=True), {"shapes": "one"}, 1, None),
        (Flexible(), {"shapes": "each"}, 3, None),
        (Flexible(declines="Neg"), {}, 3, "'neg' (Neg) is not on flexible{declines=Neg}: it needs sizes for Neg"),
        (Flexible(declines="Neg"), {"strict": True}, 3, "no engine of the list"),
        (Flexible(declines="Neg"), {"shapes": "one"}, 1, None),
        (RecordingEngine(), {}, 3, None),
    ],
)
@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
def test_what_speaks_against_it(engine: RecordingEngine, options: Any, compiles: int, reason: Any) -> None:
    engine.journal.clear()
    with make(engine, **options) as module:
        for rows in (5, 1, 700, 5):
            placed = call(module, rows)
        results = [line for line in str(module.explain()).splitlines() if line.startswith((ALL, FEW))]
        assert [line.partition(reason or FEW)[1] for line in results] == ([reason] if reason else [])
        declines = options == {"shapes": "one"} and engine == Flexible(declines="Neg")
        assert placed["neg"] == ("toy" if declines else engine.spec)
    assert len(engine.journal.compiled) == compiles


def test_what_an_engine_of_the_list_takes_in_its_stead_stays_with_all_sizes() -> None:
    engine = Flexible(declines="Neg")
    with make(engine, "ort") as module:
        assert call(module, 5) == {"relu": engine.spec, "neg": engine.spec}
        assert [call(module, rows) for rows in (6, 7)] == [{"relu": engine.spec, "neg": "ort"}] * 2
        assert f"not on {engine.spec}: it needs sizes for Neg" in str(module.explain())
    assert len(engine.journal.compiled) == 2


def test_the_reference_in_the_list_counts_as_behind_it() -> None:
    engine = Flexible(declines="Neg")
    with make(engine, "toy") as module:
        assert {*call(module, 5).values(), *call(module, 6).values()} == {engine.spec}
    assert len(engine.journal.compiled) == 2


@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
def test_what_it_never_takes_speaks_against_nothing() -> None:
    engine = Flexible(takes="Relu|Neg")
    model = graph(OPEN[0], {**OPEN[1], "z": "int64[2,?]"}, NODES[0], node("NonZero", "a", "z", name="z"), NODES[1])
    with xrt.XRTModule(model, [engine], cache=CompileCache()) as module:
        for rows in (5, 6, 7):
            module(np.ones((rows, 3), "float32"))
    assert len(engine.journal.compiled) == 2


def test_a_compile_without_examples() -> None:
    with make(Flexible()) as module:
        assert module.compile().launches[0].engine == "flexible"
    for engine, reason in (
        (Flexible(slow=True), "it is twice as quick at"),
        (RecordingEngine(), "engine 'recording' needs every"),
    ):
        text = rf"^compile\(\) needs example inputs: {reason}.*pass m.compile"
        with make(engine) as module, pytest.raises(InputError, match=text):
            module.compile()


@pytest.mark.parametrize(
    ("engines", "options", "text"),
    [
        (["toy"], {"shapes": "sometimes"}, r"^shapes must be 'auto', 'each', 'one' or xrt\.Buckets\(\.\.\.\); got 'sometimes'$"),
        (
            [RecordingEngine()],
            {"shapes": "one"},
            "^shapes='one': engine 'recording' compiles for fixed sizes; remove it or the option$",
        ),
    ],
)
def test_options_that_cannot_be(engines: list[Any], options: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make(*engines, **options)


@pytest.mark.slow
def test_a_later_module_and_a_bundle_have_the_program_for_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.formats.output.MIN_STAMP_AGE_NS", -(10**12))  # files count as settled that were written just now
    onnx.save(MODEL, tmp_path / "model.onnx")
    for round_ in range(2):
        cache = CompileCache(disk=open_disk_tier(directory=tmp_path / "cache"))
        with xrt.XRTModule(tmp_path / "model.onnx", "openvino", cache=cache) as module:
            assert {*call(module, 5 + round_).values(), *call(module, 9).values()} == {"openvino"}
            module.save(tmp_path / "model.xrt")
        monkeypatch.setattr("xrt.engines.openvino.OpenVino.compile", None)
    with xrt.load(tmp_path / "model.xrt", cache=CompileCache()) as module:
        assert {*call(module, 5).values(), *call(module, 8).values()} == {"openvino"}
