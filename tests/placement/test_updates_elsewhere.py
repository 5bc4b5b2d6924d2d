"""Plans of ``engine="auto"`` that update state on another engine than the gradient: the numbers of the functional form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xrt
from tests.placement.uneven import TOY, tuned
from xrt import ops, training
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, RunOptions
from xrt.engines.contract import registry
from xrt.graph import Function, list_states
from xrt.partition import ClusteringOptions, Plan
from xrt.partition.fold import extract_subgraph
from xrt.placement.profiler import LocalRunner, TrialLimits
from xrt.placement.race import Candidates
from xrt.placement.result import PlacementRequest
from xrt.processes.background import OutOfTime
from xrt.runtime import Program, compile_plan, make_timed_call
from xrt.testing.corpus.entry import graph, node

X = np.random.default_rng(3).standard_normal((8, 300), dtype="float32")
LABELS = np.arange(8)
DATA: dict[str, Any] = {"x": X, "target": LABELS, "learning_rate": np.array(0.01, "float32")}


class Layers(xrt.Graph):
    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        self.first = draw.standard_normal((300, 300), dtype="float32") / 20
        self.last = draw.standard_normal((300, 200), dtype="float32") / 20

    def build(self, x: Any) -> Any:
        return {"scores": ops.Tanh(x @ self.first) @ self.last}


def make_step(optimizer: training.Optimizer) -> tuple[Function, dict[str, Any]]:
    """Return a step, and its state at first."""
    graph = Layers()
    function = training.step(graph.trace(X), loss=training.CrossEntropy(), optimizer=optimizer)
    state = {}
    for one in list_states(function):
        type_ = function.get_type(one.input)
        state[one.input] = np.full([int(str(extent)) for extent in type_.shape or ()], one.fill, type_.dtype.numpy)
    return function, {**state, "first": graph.first.copy(), "last": graph.last.copy()}


def list_plans(function: Function, *specs: str, **options: Any) -> tuple[Plan, ...]:
    engines = tuple(map(registry.create, specs))
    request = PlacementRequest(function, engines, CompileContext(), ClusteringOptions(**options))
    return Candidates.collect(request, engines).updating_plans


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [training.SGD(momentum=0.9), training.Adam()], ids=repr)
def test_they_give_the_numbers_of_the_functional_form(optimizer: training.Optimizer) -> None:
    function, state = make_step(optimizer)
    plans = list_plans(function, "ort", "toy")
    assert [set(plan.used_engines) for plan in plans] == [{"ort", "toy"}]
    names = [value.name for value in function.inputs]
    with xrt.XRTModule(function.replace(aliases=(), metadata={}), "toy") as functional:
        for plan in plans:
            engines = {launch.engine: registry.create(launch.engine) for launch in plan.launches}
            program = compile_plan(plan, engines, CompileContext(), CompileCache())
            assert isinstance(program, Program)
            saved, wanted = ({name: value.copy() for name, value in state.items()} for _ in range(2))
            for _ in range(3):
                results = program.run([{**DATA, **saved}[name] for name in names])
                values = dict(zip((v.name for v in function.outputs), functional(**DATA, **wanted), strict=True))
                np.testing.assert_allclose(results[0], values["loss"], rtol=1e-4)
                wanted = {one.input: values[one.output] for one in list_states(function)}
                for name, value in wanted.items():
                    np.testing.assert_allclose(saved[name], value, rtol=1e-4, atol=1e-4, err_msg=name)
            assert not program.profile().copies
            program.close()


def test_little_state_pins_and_a_single_engine_make_none() -> None:
    function, _ = make_step(training.Adam())
    assert list_plans(function, "ort") == list_plans(function, "toy") == ()
    assert list_plans(function, "ort", "toy", minimum_nodes=len(function.nodes)) == ()
    assert list_plans(function.replace(aliases=(), metadata={}), "ort", "toy") == ()


def test_they_race_before_mixtures_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixtures left no time for them: a transformer's step stayed with one engine that copies what it updates."""

    def endless(*given: Any, **options: Any) -> Any:
        raise OutOfTime

    monkeypatch.setattr("xrt.placement.autotune.choose_requests", endless)
    function, state = make_step(training.Adam())
    inputs = [{**DATA, **state}[value.name] for value in function.inputs]
    result = tuned(function, registry.create("ort"), TOY, budget=60.0, inputs=inputs)
    assert "ort + toy" in {candidate.title for candidate in result.record.candidates if candidate.ratio}


class Counting(Executable):
    """Adds one to its input; it records what it was given."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.seen: list[tuple[float, bool]] = []

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return [(0, 1)] if self.in_place else []

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        (x,) = inputs
        buffer = options.out[1] if options.out is not None else None
        self.seen.append((float(x[0]), buffer is x))
        return [x.copy(), np.add(x, 1, out=buffer)]


ADDING = graph(
    {"x": "float32[4]"},
    {"first": "float32[4]", "y": "float32[4]"},
    node("Identity", "x", "first", name="first"),
    node("Add", "x one", "y", name="add"),
    constants={"one": np.ones(4, "float32")},
    aliases=(("x", "y"),),
)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_a_part_is_timed_with_its_update(in_place: bool, inner: bool) -> None:
    executable, x = Counting(in_place), np.zeros(4, "float32")
    call = make_timed_call(executable, [x], [x, x] if inner else None, ADDING)
    for _ in range(3):
        call()
    assert executable.seen == [(0, in_place), (1, in_place), (2, in_place)]
    assert not x.any()


@pytest.mark.parametrize("spec", ["toy", "toy{native=off}", "ort", "xla", "torch"])
def test_a_trial_gives_what_the_first_call_computes(spec: str) -> None:
    x = np.full(4, 5, "float32")
    results, samples = LocalRunner(registry.create(spec)).trial(ADDING, CompileContext(), [x], TrialLimits(0.01, inner=True))
    np.testing.assert_array_equal(results, [[5] * 4, [6] * 4])
    assert samples and (x == 5).all()


def test_a_part_after_which_nothing_runs_updates_what_others_read() -> None:
    function, _ = make_step(training.Adam())
    (plan,) = list_plans(function, "ort", "toy")
    places = {node.name: number for number, node in enumerate(function.nodes)}
    first, last = plan.launches
    assert len(last.function.aliases) > 6
    parts = [extract_subgraph(function, sorted(places[name] for name in launch.nodes), launch.name) for launch in (first, last)]
    assert [part.shape_key for part in parts] == [launch.function.shape_key for launch in (first, last)]
    alone = [number for number, node in enumerate(function.nodes) if node.name in last.nodes and "last_next" in node.outputs]
    assert extract_subgraph(function, alone).aliases == (("last", "last_next"),)
    name = function.nodes[alone[0]].name
    nodes = tuple(replace(n, control=(name,)) if "first_next" in n.outputs else n for n in function.nodes)
    waiting = function.replace(nodes=nodes)
    assert extract_subgraph(waiting, [waiting.producer_index("last_next") or 0]).aliases == ()
