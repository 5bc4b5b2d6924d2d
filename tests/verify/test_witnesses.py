"""Engines as witnesses: where others agree with an engine and not with the reference, the engine is not accused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import xrt
from tests.verify.wrong import Wrong, long_model, numbers
from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit import reference_evaluator
from xrt.errors import FallbackWarning, ReferenceWarning
from xrt.graph import Function
from xrt.module import output_checks
from xrt.placement import reference
from xrt.placement.profiling.correctness import CheckResult, check_against_reference
from xrt.verify import Verdict, WitnessedReference, Witnesses, judge_outputs
from xrt.verify.execution import run_alone

Bench = Callable[..., None]

ALONE = "the reference alone differs at node 'n3' (Atan); openvino and xla agree with ort"


@pytest.fixture
def wrong_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the reference wrong at Atan; it folds nothing here."""
    make_wrong(monkeypatch)


def make_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reference, reference_evaluator):
        monkeypatch.setattr(module, "get_reference_engine", lambda: Wrong(native="off"))


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Put engines in this process before the module; returns the names of those that were asked for."""

    def put(*engines: str | GraphCompiler, borrowed: bool = False) -> list[str]:
        asked: list[str] = []

        def made(self: reference.Bench) -> Iterator[GraphCompiler]:
            for engine in map(registry.create, engines):
                asked.append(engine.name)
                yield engine

        monkeypatch.setattr(reference.Bench, "_engines", made)
        monkeypatch.setattr(reference, "is_borrowed", lambda node, function: borrowed)
        return asked

    return put


# ---------------------------------------------------------------------- what is said


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_reference")
def test_verify_says_that_the_reference_alone_differs(present: Any) -> None:
    present("openvino", "xla")
    with xrt.XRTModule(long_model(count=8, at=3), engine="ort", strict=True) as module:
        found = module.verify(numbers())
        assert module.bisect(numbers()) is None
    assert found
    assert found.regions[0].judgement.verdict is Verdict.UPHELD
    assert str(found) == f"xrt_ort_0 (ort, 8 nodes): upheld: {ALONE}\nthe whole: agrees"
    assert all(check.judgement.verdict is not Verdict.DISAGREES for check in found.regions[0].inner)


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_reference")
def test_a_checked_call_keeps_the_engines_result(present: Any) -> None:
    present("openvino", "xla")
    x = numbers()
    with (
        warnings.catch_warnings(record=True) as heard,
        xrt.XRTModule(long_model(count=8, at=3), engine="ort", check=1.0) as module,
    ):
        warnings.simplefilter("always")
        first, second = module(x), module(x)
        assert {launch.engine for launch in module.plan.launches} == {"ort"}
        assert ALONE in str(module.explain())
    assert [str(one.message) for one in heard if one.category is FallbackWarning] == []
    (told,) = [str(one.message) for one in heard if one.category is ReferenceWarning]
    assert told == f"{ALONE}; what toy{{native=off}} computes there is not taken for right, and the result is kept"
    plain = xrt.XRTModule(long_model(count=8, at=3), engine="ort")(x)
    assert np.array_equal(first, plain) and np.array_equal(second, plain)


@pytest.mark.slow
def test_another_fault_in_the_same_region_is_still_reported(present: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is wrong at Atan, as two witnesses show; the engine at Cos, which nobody else computes so."""
    present("openvino", "xla")
    make_wrong(monkeypatch)
    engine = AlsoWrong(native="off")
    with xrt.XRTModule(long_model(count=8, at=3), engine=engine, strict=True) as module:
        found = module.verify(numbers(), inner=False)
    assert not found
    assert found.regions[0].judgement.verdict is Verdict.DISAGREES


class AlsoWrong(Wrong):
    """Right at Atan, wrong at Cos."""

    name = "also_wrong"
    kernels = xrt.engines.toy.Toy.kernels.extend("also_wrong")


@AlsoWrong.kernels("Cos", devices=("cpu", "cuda"), priority=9)
def cos(node: Any, env: Any) -> Any:
    return lambda x: env.xp.cos(x) + np.float32(0.1)


# ---------------------------------------------------------------------- who is believed


def accused(engine: GraphCompiler, right: GraphCompiler, *present: GraphCompiler, borrowed: bool = False, x: Any = None) -> Any:
    """Return what becomes of an engine's results on a model with an Atan, held against a reference before those witnesses."""
    model, x = long_model(count=4, at=3), numbers() if x is None else x

    def run(function: Function, inputs: Any) -> Any:
        return run_alone(right, function, inputs)

    results = run_alone(engine, model, [x])
    judged = judge_outputs(model, [x], results, run(model, [x]), run)
    assert judged.verdict is Verdict.DISAGREES
    witnesses = Witnesses(lambda: present, lambda node, function: borrowed, CompileContext(threads=1))
    return witnesses.review(model, [x], results, engine, run, judged).judgement.verdict


def engines(*names: str) -> list[GraphCompiler]:
    return [registry.create(name) for name in names]


@pytest.mark.slow
def test_two_that_agree_with_the_engine_outweigh_the_reference() -> None:
    assert accused(*engines("ort"), Wrong(native="off"), *engines("openvino", "xla")) is Verdict.UPHELD


@pytest.mark.slow
def test_one_is_enough_only_where_the_reference_has_borrowed_its_kernel() -> None:
    assert accused(*engines("ort"), Wrong(native="off"), *engines("openvino")) is Verdict.DISAGREES
    assert accused(*engines("ort"), Wrong(native="off"), *engines("openvino"), borrowed=True) is Verdict.UPHELD


def test_nobody_is_a_witness_for_itself_and_neither_is_the_reference() -> None:
    assert accused(*engines("ort"), Wrong(native="off"), *engines("ort", "toy"), borrowed=True) is Verdict.DISAGREES


def test_who_agrees_with_the_reference_accuses_the_engine() -> None:
    right, wrong = registry.create("toy{native=off}"), Wrong(native="off")
    assert accused(wrong, right, *engines("ort", "openvino"), borrowed=True) is Verdict.DISAGREES


@pytest.mark.slow
def test_a_witness_that_declines_or_breaks_says_nothing() -> None:
    class Breaking(type(registry.create("xla"))):  # type: ignore[misc]
        def compile(self, function: Function, context: CompileContext) -> Any:
            raise RuntimeError("out of order")

    assert accused(*engines("ort"), Wrong(native="off"), Breaking(), *engines("openvino", "xla")) is Verdict.UPHELD


def test_special_values_are_the_references_own_matter() -> None:
    """Engines lose NaN together; the reference's own kernels do not."""
    x = numbers()
    x[0, 0] = np.nan
    assert accused(*engines("ort"), Wrong(native="off"), *engines("openvino", "xla"), x=x) is Verdict.DISAGREES


def test_nobody_is_asked_where_nothing_differs(present: Any) -> None:
    asked = present("openvino", "xla")
    with xrt.XRTModule(long_model(count=8, at=3), engine="ort", check=1.0) as module:
        module(numbers())
        assert module.verify(numbers())
    assert asked == []


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_reference")
def test_witnesses_are_asked_in_processes_of_their_own() -> None:
    with xrt.XRTModule(long_model(count=8, at=3), engine="ort", strict=True) as module:
        found = module.verify(numbers(), inner=False)
        bench = module._checks._bench
        assert all(engine is None or engine.runs for engine in bench._made.values())
    assert found and found.regions[0].judgement.verdict is Verdict.UPHELD
    assert bench._made == {}


def test_the_reference_says_what_it_has_borrowed() -> None:
    from xrt.testing.corpus.entry import graph, node

    own = graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("Relu", "x", "y"))
    not_own = graph({"x": "float32[2,2]"}, {"y": "float32[2,2]"}, node("Binarizer", "x", "y", domain="ai.onnx.ml"), ml=1)
    assert not reference.is_borrowed(own.nodes[0], own)
    assert reference.is_borrowed(not_own.nodes[0], not_own)
    assert output_checks.REFERENCE.startswith("toy")


# ---------------------------------------------------------------------- placement by measurement


def doubted(*present: GraphCompiler, borrowed: bool = False) -> tuple[WitnessedReference, Function, Any]:
    def run(function: Function, inputs: Any) -> Any:
        return run_alone(Wrong(native="off"), function, inputs)

    witnesses = Witnesses(lambda: present, lambda node, function: borrowed, CompileContext(threads=1))
    return WitnessedReference(run, witnesses), long_model(count=4, at=3), numbers()


def found(reference: WitnessedReference, model: Function, x: Any, engine: GraphCompiler) -> Any:
    expected = reference(model, [x])
    return check_against_reference(model, [x], run_alone(engine, model, [x]), expected, reference, ExecutionOptions())


@pytest.mark.slow
def test_a_search_keeps_an_engine_that_others_agree_with_and_drops_the_reference() -> None:
    """Whose results they are is not known there, so the engine itself is among those that agree."""
    reference, model, x = doubted(*engines("ort", "openvino", "xla"))
    ort, wrong = registry.create("ort"), Wrong(native="off")
    assert found(reference, model, x, wrong).wrong == ""
    told = "the reference alone differs: ort, openvino and xla agree"
    assert found(reference, model, x, ort) == CheckResult(note=told)
    assert found(reference, model, x, wrong).wrong == told
    assert found(reference, model, x, registry.create("openvino")).note == told
    assert found(reference, model, x, AlsoWrong(native="off")).wrong != ""


@pytest.mark.slow
def test_a_search_believes_the_reference_where_too_few_agree() -> None:
    for present, borrowed, believed in (
        (("ort", "openvino"), False, True),
        (("ort", "openvino"), True, False),
        (("ort",), True, True),
    ):
        reference, model, x = doubted(*engines(*present), borrowed=borrowed)
        assert bool(found(reference, model, x, registry.create("ort")).wrong) is believed
