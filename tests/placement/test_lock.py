"""What a lock means: the same plan again, or what differs; and the gate that compares ratios."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.module.small_models import chain
from tests.placement.uneven import SimulatedClock, Uneven, simulate_time
from xrt.cache import CompileCache
from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toy import Toy
from xrt.errors import LockError
from xrt.formats.placement_file import Baseline, NodeRange, PlacementFile, SearchRecord, dumps, loads, write_placement
from xrt.graph import Function
from xrt.measure.statistics import RatioInterval, compute_round_ratio_with_drift
from xrt.partition import ClusteringOptions, Plan, partition
from xrt.partition.partitioner import map_nodes_to_engines
from xrt.passes import infer_shapes
from xrt.placement.race import SEGMENTS, RegressionSetup, check_regression, find_runner_up, make_baseline, make_candidate
from xrt.placement.records import create_lock, list_mismatches, list_node_ranges, plan_from_ranges, read_lock
from xrt.placement.result import PlacementRequest, TuningResult
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
OPS = ("Abs", "Exp", "Neg", "Cos", "Abs")
CONTEXT = CompileContext(threads=1)
NOW = datetime(2026, 11, 21, tzinfo=UTC)


NET = infer_shapes(chain(*OPS)).replace(name="net")
ENGINES: list[GraphCompiler] = [Toy(native="off"), registry.create("ort")]


def mixed(function: Function = NET, most: int | None = None) -> Plan:
    """Abs and Exp on ort, the others on toy."""
    options = ClusteringOptions(pins=("Abs|Exp=ort", "Neg|Cos=toy"), maximum_nodes=most)
    return partition(function, ENGINES, options)


def single(spec: str, engines: Sequence[GraphCompiler] = ENGINES) -> Plan:
    return partition(NET, engines, ClusteringOptions(pins=(f"*={spec}",)))


def ask(function: Function = NET, **terms: Any) -> PlacementRequest:
    return PlacementRequest(function, **{"engines": tuple(ENGINES), "context": CONTEXT, **terms})


def locked(plan: Plan | None = None, gate: Baseline | None = None, record: SearchRecord[Plan] = SearchRecord()) -> PlacementFile:
    return create_lock(TuningResult(plan or mixed(), record), ask(), baseline=gate, now=NOW)


@pytest.mark.parametrize("most", [None, 1])
def test_a_lock_gives_its_plan_again(most: int | None) -> None:
    plan = mixed(most=most)
    read = loads(dumps(locked(plan)))
    result = plan_from_ranges(read.plan, ask())
    assert [(x.name, x.engine, x.nodes) for x in result.launches] == [(x.name, x.engine, x.nodes) for x in plan.launches]
    assert list_mismatches(read, ask()) == ()
    assert dumps(loads(dumps(read))) == dumps(read)


def test_neighbours_of_a_region_are_one_row() -> None:
    assert list_node_ranges(mixed(), NET) == (
        NodeRange(0, "ort", 0, 2, "n0", "n1"),
        NodeRange(1, "toy{native=off}", 2, 2, "n2", "n3"),
        NodeRange(2, "ort", 4, 1, "n4"),
    )


@pytest.mark.parametrize("names", [["\udc80", 'a"b', "c\nd", "", "e" * 5000], ["m0", "m1", "m2", "m3", "m4"]])
def test_names_of_nodes_do_not_matter(names: list[str]) -> None:
    """A model whose nodes are called otherwise is the same model, and has the same plan."""
    other = NET.replace(nodes=tuple(replace(item, name=name) for item, name in zip(NET.nodes, names, strict=True)))
    lock = loads(dumps(locked()))
    assert list_mismatches(lock, ask(other)) == ()
    assert list(map_nodes_to_engines(plan_from_ranges(lock.plan, ask(other))).values()) == list(
        map_nodes_to_engines(mixed()).values()
    )
    again = create_lock(TuningResult(mixed(other), SearchRecord()), ask(other), now=NOW)
    assert [(r.engine, r.at, r.nodes) for r in loads(dumps(again)).plan] == [(r.engine, r.at, r.nodes) for r in lock.plan]


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ((), "only 0 of 5 nodes are placed; the first missing one is 'n0'"),
        ((NodeRange(0, "ort", 0, 5), NodeRange(1, "ort", 4, 1)), "node 'n4' is placed twice"),
        ((NodeRange(0, "ort", 0, 9),), "the plan places nodes up to number 9, and the model has 5 nodes"),
        ((NodeRange(0, "tvm", 0, 5),), "the plan is impossible now: node 'n0' is assigned to 'tvm', which is not in the list of"),
        ((NodeRange(0, "ort", 0, 2), NodeRange(0, "toy{native=off}", 2, 3)), "the plan is impossible now: nodes 'n0', 'n1'"),
    ],
)
def test_runs_that_are_no_plan_are_refused(runs: tuple[NodeRange, ...], told: str) -> None:
    with pytest.raises(LockError) as caught:
        plan_from_ranges(runs, ask())
    assert str(caught.value).startswith(told)


def test_numbers_of_a_lock_have_six_digits() -> None:
    won = make_candidate(single("ort"), "won", 0.00781234567, ratio=1.0, regions=(1e-3,), is_baseline=True)
    record = SearchRecord(candidates=(won,), rounds=9, budget=20.0, spent=1.23456789)
    lock = locked(gate=Baseline("toy", 0.123456789, 0.1, 0.2, 9), record=record)
    locked_candidate = won.replace(seconds=0.00781235, regions=(), plan=())  # times of regions and nodes are for decisions
    assert lock.search == record.replace(candidates=(locked_candidate,), spent=1.23457)
    assert lock.baseline == Baseline("toy", 0.123457, 0.1, 0.2, 9)


def test_another_placement_file_is_no_lock(tmp_path: Path) -> None:
    write_placement(PlacementFile(), tmp_path / "x")
    with pytest.raises(LockError, match=r"^'.*/x' has no section 'model', so it is no lockfile; `xrt lock MODEL -o FILE` writes"):
        read_lock(tmp_path / "x")


@dataclass(frozen=True)
class Newer(Toy):
    """toy in its next version."""

    name: ClassVar[str] = "toy"

    def version(self) -> str:
        return "xrt 9.9"


OTHER = graph({"z": "float32[4]"}, {"y": "float32[4]"}, node("Relu", "z", "y"), opset=20)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"engines": (Newer(native="off"), ENGINES[1])}, r"^engine 'toy\{native=off\}' was xrt 0.1.0, .* and is xrt 9.9$"),
        ({"engines": (ENGINES[0],)}, r"^engine 'ort', which the plan uses, is not in the list of engines or not ready$"),
        ({"context": CompileContext(threads=2)}, r"^threads was 1 and is 2$"),
        ({"context": CompileContext(ExecutionOptions(precision="fp16"), threads=1)}, r"^precision was fp32 and is fp16$"),
        ({"clustering": ClusteringOptions(maximum_nodes=3)}, r"^clustering was  and is maximum_nodes=3$"),
    ],
)
def test_what_differs_is_reported_exactly(changed: dict[str, Any], told: str) -> None:
    (result,) = list_mismatches(locked(), ask(**changed))
    assert re.fullmatch(told, result)


def test_other_sizes_of_the_same_model_are_called_so() -> None:
    lock = locked()
    lock = lock.replace(inputs={"x": "float32[9,3]"}, model={**lock.model, "fingerprint": "0" * 64})
    assert list_mismatches(lock, ask()) == ("the sizes differ: input x was float32[9,3] and is float32[2,3]",)


def test_another_model_and_another_machine_are_reported() -> None:
    output = list_mismatches(locked(), ask(OTHER))
    assert output[:3] == (
        "input x was float32[2,3] and is absent",
        "input z is float32[4] and was absent",
        "the number of nodes was 5 and is 1",
    )
    assert output[3].startswith("the model 'net' had fingerprint ") and len(output) == 4
    machine = {**locked().machine, "processor": "a Pentium"}
    (result,) = list_mismatches(locked().replace(machine=machine), ask())
    assert result.startswith("processor was a Pentium and is ")


def test_a_lock_has_the_versions_of_its_baseline() -> None:
    lock = locked(single("ort"), Baseline("toy", 0.5, 0.4, 0.6, 9, list_node_ranges(single(ENGINES[1].spec), NET)))
    assert list_mismatches(lock, ask(), for_check=True) == ()


def test_engines_without_a_part_do_not_matter() -> None:
    lock = locked().replace(engines={**locked().engines, "openvino": "1.0"})
    assert list_mismatches(lock, ask()) == ()


def course(engines: Sequence[GraphCompiler] = ENGINES, seconds: float = 30.0, **options: Any) -> RegressionSetup:
    return RegressionSetup(ask(engines=tuple(engines)), CompileCache(), [X], evaluate, seconds, **options)


QUICK, SLOW = Uneven(slow="Cos", seconds=0.003), Uneven(slow="Cos", seconds=0.006)
QUICK_PLAN, SLOW_PLAN = (single(engine.spec, [QUICK, SLOW]) for engine in (QUICK, SLOW))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    return simulate_time(monkeypatch)


CANDIDATES = make_candidate(QUICK_PLAN, "won"), make_candidate(SLOW_PLAN, "lost")


def test_a_plan_is_compared_with_the_best_other_one() -> None:
    mine, ort, toy = mixed(), make_candidate(single("ort"), "lost"), make_candidate(single("toy"), "lost")
    won, baseline = make_candidate(mine, "won"), ort.replace(is_baseline=True)
    assert find_runner_up(mine, [won, toy, baseline]) is baseline
    assert find_runner_up(mine, [won.replace(is_baseline=True), toy, ort]) is toy
    assert find_runner_up(single("ort"), [baseline, make_candidate(mine, "lost"), toy]) is toy, "one engine before a mixture"
    assert find_runner_up(single("ort"), [baseline, make_candidate(mine, "tie")]).plan is mine  # type: ignore[union-attr]
    assert find_runner_up(mine, [won, ort.replace(verdict="failed"), toy.replace(verdict="wrong")]) is None


def test_a_gate_ends_when_its_time_is_over() -> None:
    seconds = itertools.count()
    ending = course([QUICK, SLOW], 10, clock=lambda: float(next(seconds)))
    gate = make_baseline(ending, QUICK_PLAN, CANDIDATES)
    assert gate is not None and gate.rounds == SEGMENTS


@pytest.mark.slow
def test_a_gate_is_measured_and_held(clock: SimulatedClock) -> None:
    gate = make_baseline(course([QUICK, SLOW], 2, clock=clock), QUICK_PLAN, CANDIDATES)
    assert gate is not None and gate.plan == SLOW.spec and gate.rounds >= SEGMENTS
    assert gate.ratio == pytest.approx(0.5, rel=0.05)
    assert plan_from_ranges(gate.ranges, ask(engines=(QUICK, SLOW))).launches[0].engine == SLOW.spec
    outcome = check_regression(course([QUICK, SLOW], 2, clock=clock), QUICK_PLAN, SLOW_PLAN, gate, 0.5)
    assert outcome and outcome.state == "held"
    lines = str(outcome).splitlines()
    assert lines[0].startswith("held: ") and lines[0].endswith("; the limit is +50.0%")
    assert lines[1].startswith(f"time divided by that of {SLOW.spec}: ") and lines[1].endswith(" in the lock")


@pytest.mark.slow
def test_a_plan_that_has_become_slower_has_regressed(clock: SimulatedClock) -> None:
    gate = Baseline("slow", 0.1, 0.099, 0.101, 20)
    outcome = check_regression(course([QUICK, SLOW], 2, clock=clock), QUICK_PLAN, SLOW_PLAN, gate, 0.05)
    assert not outcome and outcome.state == "regressed"
    assert str(outcome).startswith("regressed: +")
    assert "ranges" not in outcome.to_dict()["locked"]


@pytest.mark.slow
@pytest.mark.parametrize("gate", [Baseline("slow", 0.5, 0.1, 3.0, 20), Baseline("slow", 0.4, 0.3, 0.42, 20)])
def test_noise_decides_nothing(gate: Baseline, clock: SimulatedClock) -> None:
    outcome = check_regression(course([QUICK, SLOW], 0.1, clock=clock), QUICK_PLAN, SLOW_PLAN, gate, 0.05)
    assert outcome and outcome.state == "undecided"
    assert str(outcome).startswith("undecided, since the noise is too large: ")


def test_without_another_plan_it_must_run_and_be_right() -> None:
    outcome = check_regression(course(), mixed(), None, None, 0.05)
    assert outcome and str(outcome).startswith("its results agree with the reference; the lock has no other plan")
    assert make_baseline(course(), mixed(), [make_candidate(mixed(), "won")]) is None


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (FaultyEngine(how="value"), r"^the plan faulty\{how=value\} computes wrongly: y differs in 6 of 6 elements"),
        (
            FaultyEngine(how="raise"),
            r"^the plan faulty does not run: engine 'faulty' failed to run xrt_faulty_0: RuntimeError: the faulty",
        ),
        (
            FaultyEngine(where="compile"),
            r"^the plan faulty\{where=compile\} does not run: engine 'faulty\{where=compile\}' failed to compile",
        ),
        (
            FaultyEngine(nth=9),
            r"^the plan faulty\{nth=9\} does not run: RunFailed|^the plan faulty\{nth=9\} does not run: RuntimeError",
        ),
    ],
)
def test_what_cannot_run_is_reported(engine: GraphCompiler, told: str) -> None:
    engines = [engine, ENGINES[1]]
    mine, other = single(engine.spec, engines), single("ort", engines)
    with pytest.raises(LockError, match=told):
        check_regression(course(engines, 5), mine, other, Baseline("ort", 1.0, 0.9, 1.1, 12), 0.05)


def test_a_machine_that_drifts_is_in_doubt() -> None:
    """Half of the rounds say 1 and half say 2: the bootstrap alone may be sure of either, and the spells are not."""
    steady, drifts = [1.0] * 20, [1.0] * 11 + [2.0] * 9
    assert compute_round_ratio_with_drift(drifts, steady, parts=SEGMENTS).high == 2.0
    assert compute_round_ratio_with_drift(steady, steady, parts=SEGMENTS) == RatioInterval(1.0, 1.0, 1.0)
