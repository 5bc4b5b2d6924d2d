"""What an engine declares about special values excuses no wrong result on ordinary ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from xrt.engines import CompileContext, Deviation, Executable, RunOptions
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats import text
from xrt.graph import Function
from xrt.testing import ResultWord, conform, node_cases, run_case
from xrt.testing.conformance import run_list, run_single
from xrt.testing.corpus import CORPUS, CorpusEntry
from xrt.testing.fault_injection import FaultyEngine, How, ObservedExecutable, RecordingEngine
from xrt.testing.fuzz import Fuzzer
from xrt.testing.running import overlook_deviations
from xrt.testing.suite import EngineSuite
from xrt.verify import Verdict
from xrt.verify.deviations import find_special_values
from xrt.verify.execution import expose_all_values

ALL = tuple(map(Deviation, ("nan", "infinity", "denormal", "float16", "integer", "empty")))


def _lose(array: Any) -> Any:
    if array.dtype.kind == "f":
        return np.full_like(array, np.nan)
    return np.full_like(array, 1 << 30) if array.dtype.kind == "i" else ~array


FAULTS: dict[str, Callable[[Any], Any]] = {"lose": _lose, "drop": lambda array: array.reshape(-1)[:0]}


@dataclass(frozen=True)
class Planted(RecordingEngine):
    """Declares every deviation and returns NaN for every number, or no element at all."""

    name: ClassVar[str] = "planted"
    deviations: ClassVar[tuple[Deviation, ...]] = ALL
    fault: str = "lose"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return _Spoiled(self._engine.compile(function, context), self)


class _Spoiled(ObservedExecutable):
    def __init__(self, inner: Executable, engine: Planted) -> None:
        super().__init__(inner, engine.journal)
        self.spoil = FAULTS[engine.fault]

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        return [self.spoil(result) if isinstance(result, np.ndarray) else result for result in super().run(inputs)]


@dataclass(frozen=True)
class Declaring(FaultyEngine):
    """Right, declares every deviation and writes zero to its first input."""

    name: ClassVar[str] = "declaring"
    deviations: ClassVar[tuple[Deviation, ...]] = ALL
    how: How = "write_input"


each_fault = pytest.mark.parametrize("fault", sorted(FAULTS))


def test_openvino_declares_no_more_than_the_planted_engine() -> None:
    assert {item.kind for item in registry.engine_class("openvino").deviations} <= {item.kind for item in ALL}


@each_fault
def test_conformance_calls_it_wrong(fault: str) -> None:
    report = conform(Planted(fault=fault), "test_relu,test_add,test_sub_int64*,test_matmul_2d,test_less,test_transpose_default")
    assert {outcome.word for outcome in report.outcomes} == {ResultWord.FAILED}


@each_fault
def test_fuzzing_calls_it_wrong(fault: str) -> None:
    fuzzer = Fuzzer([Planted(fault=fault)], bisects=False, kinds=("alone", "listed"))
    fuzzer.run(range(20))  # some graphs have no elements to lose
    assert len(fuzzer.findings) >= 15
    assert fuzzer.counts["planted alone", Verdict.DECLINED] <= 3


@each_fault
def test_the_corpus_calls_it_wrong(fault: str) -> None:
    class Suite(EngineSuite):
        engine = Planted(fault=fault)

    plain = [entry for entry in CORPUS if all(isinstance(result, np.ndarray) and result.size for result in entry.expected)]
    unnoticed = [entry for entry in plain if not _fails(Suite().test_corpus_alone, entry.name)]
    if fault == "drop":
        assert [entry.name for entry in unnoticed] == []
    assert [entry.name for entry in unnoticed if not find_special_values(list_values(entry))] == []
    assert len(unnoticed) < len(plain) / 4


def list_values(item: CorpusEntry) -> list[Any]:
    inner = evaluate(expose_all_values(item.function), [copy.deepcopy(value) for value in item.inputs])
    return [*item.inputs, *item.expected, *inner, *(constant.array for constant in item.function.constants.values())]


def _fails(test: Callable[[str], None], name: str) -> bool:
    try:
        test(name)
    except AssertionError:
        return True
    return False


def test_a_changed_input_or_an_engine_that_ran_nothing_excuses_nothing() -> None:
    (case,) = node_cases("test_relu")
    x = case.inputs[0].copy()
    x[0, 0, 0] = np.nan
    outcome = run_case(replace(case, inputs=(x.copy(),), expected=(np.maximum(x, 0),)), run_single(Declaring()))
    assert (outcome.word, outcome.reason.partition(" ")[0]) == (ResultWord.FAILED, "input")
    special = replace(case, inputs=(x,), expected=(np.zeros_like(x),))
    assert run_case(special, run_list([Planted(takes="Relu")])).word is ResultWord.GAP
    assert run_case(special, run_list([Planted(takes="Neg"), registry.create("toy")])).word is ResultWord.FAILED


NAN, INF = np.nan, np.inf
TWO = text.parse("""function main(x: float32[2], w: float32[2]) -> (y: float32[2], z: float32[2]) {
 opset ai.onnx 18
 y = Relu(x)
 z = Log(w)
}""")


def test_only_what_a_special_value_reaches_is_explained() -> None:
    inputs = np.float32([1, NAN]), np.float32([1, 0])
    expected = np.float32([1, NAN]), np.float32([0, -INF])
    wrong = [np.float32([8, 9]), np.float32([8, 9])]
    y, z = overlook_deviations(wrong, TWO, inputs, expected, [Planted()])
    assert np.array_equal(y, expected[0], equal_nan=True), "the NaN is an input of the node"
    assert z.tolist() == [8, -INF], "the inputs of the node are ordinary, so is the first result"
    assert overlook_deviations([wrong[0][:1], wrong[1]], TWO, inputs, expected, [Planted()])[0].shape == (1,)


SLICE = text.parse("""function main(x: float32[3]) -> (y: float32[2]) {
 opset ai.onnx 18
 const first: int64[1] = [1]
 const last: int64[1] = [9223372036854775807]
 y = Slice(x, first, last)
}""")


def test_the_largest_integer_as_an_argument_is_no_special_value() -> None:
    (y,) = overlook_deviations([np.float32([8, 9])], SLICE, [np.float32([1, 2, 3])], [np.float32([2, 3])], [Planted()])
    assert y.tolist() == [8, 9]
