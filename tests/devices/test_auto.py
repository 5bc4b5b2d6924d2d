"""Placement by measurement on devices: who is timed is waited for, and what is kept says on which device it was found."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.cli.commands import NEVER, Command
from tests.devices.models import numbers
from tests.devices.worlds import TOY, World, world
from tests.module.test_faults import chain
from tests.placement.uneven import Uneven
from xrt.engines import CompileContext, Executable, RunOptions
from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import Accelerator
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import LockError, OptionError, PlacementWarning
from xrt.formats.onnx import save
from xrt.formats.placement_file import read_placement, write_placement
from xrt.graph import Function
from xrt.module.lockfile import check_module, lock_module
from xrt.partition.partitioner import map_nodes_to_engines
from xrt.placement import ProfilingRequest
from xrt.placement.profiler import LocalRunner, TrialLimits, WorkerRunner
from xrt.runtime import on_device
from xrt.testing.fault_injection import Journal, ObservedExecutable
from xrt.testing.simulated import SimulatedDevice
from xrt.testing.simulated.array import SimulatedArray, apply
from xrt.worker.isolated_engine import WorkerLimits


@dataclass(frozen=True)
class Late(Uneven):
    """The reference, and so many seconds of the device for each node of some operators."""

    name: ClassVar[str] = "late"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return _Late(registry.create(REFERENCE).compile(function, context), self.seconds_of(function), context.accelerator)


@dataclass(frozen=True)
class OnCpu(Late):
    """The same, which has never heard of devices."""

    name: ClassVar[str] = "on_cpu"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)


class _Late(ObservedExecutable):
    def __init__(self, inner: Executable, seconds: float, accelerator: Accelerator | None) -> None:
        super().__init__(inner, Journal())
        self.seconds, self.on_host = seconds, accelerator is None

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        results = list(super().run(inputs, options))
        if self.on_host:
            time.sleep(self.seconds)
        elif self.seconds:
            results[0] = _sleep_on_device(self.seconds, results[0])
        return results


def _sleep_on_device(seconds: float, x: Any) -> Any:
    """Return the array after so many seconds of a simulated device; on another one at once."""

    def compute(x: Any) -> Any:
        if x.any():  # what only wants to know the type of the result gives zeros
            time.sleep(seconds)
        return x.copy()

    return apply("late", compute, (x,)) if isinstance(x, SimulatedArray) else x.copy()


pytestmark = [pytest.mark.sample(3), pytest.mark.usefixtures("here")]
X = numbers(2, 3)
PAIR = chain("Exp", "Cos")
RIGHT = np.cos(np.exp(X))
SLOW_EXP, SLOW_COS = Late(slow="Exp"), Late(slow="Cos", seconds=0.005)


def module(simulation: World, *engines: Any, where: str = "cuda", **options: Any) -> xrt.XRTModule:
    options = {"budget": 30.0, "cache": xrt.cache.CompileCache(), "strict": True} | options
    return xrt.XRTModule(PAIR, [*engines, "auto"], where, **options)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "random"])
def test_a_mixture_wins_on_a_device_by_the_time_of_the_device(order: str) -> None:
    with world(order) as devices:
        m, x = module(devices, SLOW_EXP, SLOW_COS), devices.up(X)
        result = m(x)
        np.testing.assert_array_equal(devices.down(x), X)
        assert map_nodes_to_engines(m.plan) == {"n0": SLOW_COS.spec, "n1": SLOW_EXP.spec}
        assert {m.plan.get_device(launch) for launch in m.plan.launches} == {"cuda:0"}
        assert devices.device().owns(result)
        np.testing.assert_allclose(devices.down(result), RIGHT, rtol=1e-6)
        assert m.tuned is not None and m.tuned.how == "measured"
        single = next(candidate for candidate in m.tuned.record.candidates if len(candidate.plan.used_engines) == 1)
        assert single.seconds is not None and single.seconds > 0.003, "a call that is timed is waited for"
        plans = [candidate.plan for candidate in m.tuned.record.candidates]
        whole = [plan.launches[0] for plan in plans if len(plan.launches) == 1]
        costs = [m.tuned.table.region(ProfilingRequest.from_launch(launch).key, launch.engine) for launch in whole]
        assert all(cost.seconds > 0.003 for cost in costs)
        assert "placed by measurement" in str(m.explain())


@pytest.mark.slow
@pytest.mark.sample(3)
def test_it_serves_wherever_there_are_devices(world: World) -> None:
    m = module(world, TOY, "toy")
    np.testing.assert_allclose(world.down(m(X)), RIGHT, rtol=1e-5)
    assert m.tuned is not None and m.tuned.how == "measured"


@pytest.mark.full
def test_calls_that_are_recorded_are_measured_as_such() -> None:
    with world("late") as devices:
        m = module(devices, TOY, SLOW_EXP, cuda_graph=True)
        m.tune(X)
        assert devices.machine.kernels.count("graph") > 10
        np.testing.assert_allclose(devices.down(m(X)), RIGHT, rtol=1e-6)


@pytest.mark.full
def test_an_engine_that_does_not_run_there_is_left_out_with_its_reason() -> None:
    with world("late") as devices, pytest.warns(PlacementWarning, match="engine 'on_cpu' is left out") as caught:
        m = module(devices, OnCpu(), "ort", TOY)
        m(X)
        assert "engine 'ort' supports no node on cuda: this build of" in str(m.explain())
        assert m.plan.used_engines == (TOY,)
        with pytest.raises(OptionError, match=r"^no engine is left for"):
            module(devices, OnCpu())
    assert str(caught[0].message) == "engine 'on_cpu' is left out: it runs on cpu, and not on cuda"
    assert m.explain().left_out == ("engine 'on_cpu' is left out: it runs on cpu, and not on cuda",)
    assert m.engines == ("ort", TOY)


@pytest.mark.slow
def test_decisions_and_costs_are_of_a_device_and_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def how(where: str, **apart: str) -> str:
        with world("eager") as devices:
            m = module(devices, SLOW_EXP, TOY, where=where, devices=apart, cache=tmp_path)
            m.plan_for(X)
            assert m.tuned is not None
            return f"{m.tuned.how} {m.tuned.measurements > 0}"

    assert how("cuda") == "measured True"
    assert how("cuda") == "remembered False"
    assert how("cpu") == "measured True", "what was found on a device says nothing of the cpu"
    assert how("cuda", late="cpu").startswith("measured")
    assert how("cuda", late="cpu") == "remembered False"
    assert how("cpu", late="cuda:1").startswith("measured")
    monkeypatch.setattr(SimulatedDevice, "hardware", "another model")
    assert how("cuda") == "measured True"
    assert how("cuda") == "remembered False"


@pytest.mark.full
def test_a_lock_holds_on_the_device_that_it_was_made_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.lock"
    with world("eager") as devices:
        m = module(devices, SLOW_EXP, SLOW_COS)
        lock = lock_module(m, [X], {}, 0.5)
        write_placement(lock, path)
        assert (lock.machine["cuda:0"], lock.options["device"]) == ("simulated", "cuda")
        again = module(devices, SLOW_EXP, SLOW_COS, lock=path)
        np.testing.assert_allclose(devices.down(again(devices.up(X))), RIGHT, rtol=1e-6)
        assert again.tuned is not None and again.tuned.how == "locked"
        assert map_nodes_to_engines(again.plan) == map_nodes_to_engines(m.plan)
        outcome, elsewhere = check_module(module(devices, SLOW_EXP, SLOW_COS), read_placement(path), [X], 1e6, 1.0)
        assert outcome and elsewhere == ()
    monkeypatch.setattr(SimulatedDevice, "hardware", "another model")
    with world("eager") as devices, pytest.raises(LockError, match="cuda:0 was simulated and is another model"):
        module(devices, SLOW_EXP, SLOW_COS, lock=path).plan_for(X)
    with world("eager", devices=0) as devices, pytest.raises(LockError, match="cuda:0 was simulated and is absent"):
        module(devices, SLOW_EXP, SLOW_COS, lock=path).plan_for(X)


@pytest.mark.full
def test_the_commands_take_a_device_for_each_engine(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> str:
        code, out, err = command(*arguments)
        assert code == 0, err
        return out

    monkeypatch.setenv("XRT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save(PAIR, "m.onnx")
    apart = ("--pin", f"Exp={TOY}", "--pin", "Cos=ort", "--devices", f"{TOY}=cuda:1,ort=cpu", "--budget", "40s")
    with world("eager") as devices:
        document = json.loads(run("tune", "m.onnx", "--engines", f"{TOY},ort", *apart, "--json"))
        (won,) = [item for item in document["contenders"] if item["verdict"] == "won"]
        assert (document["how"], [region["engine"] for region in won["plan"]]) == ("measured", [TOY, "ort"])
        run("lock", "m.onnx", "--engines", f"{TOY},ort", *apart, "--gate", "1s", "-o", "m.lock")
        lock = read_placement("m.lock")
        assert {name: device for name, device in lock.options.items() if "device" in name} == {
            "device": "cpu",
            f"device of {TOY}": "cuda:1",
        }, "what is asked where the module runs anyway is no fact"
        assert lock.machine["cuda:1"] == "simulated"
        check = ("check", "m.lock", "--budget", "1s", "--max-regress", NEVER, "--json")
        assert json.loads(run(*check))["differs"] == []
        assert devices.machine.kernels.count("exp") > 10
        whole = ("--device", "cuda", "--engines", f"{TOY},toy", "--budget", "40s")
        assert json.loads(run("tune", "m.onnx", *whole, "--json"))["how"] == "measured"


@pytest.mark.parametrize("way", [LocalRunner, lambda engine: WorkerRunner(engine, WorkerLimits(60.0))], ids=["here", "apart"])
def test_a_piece_is_measured_on_a_device_here_and_in_a_worker(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.placement.profiler.SLOW_COMPILE_SECONDS", 0.0)  # every executable of a worker is kept for the race
    with world("late"):
        context = on_device("cuda", CompileContext(threads=1))
        with_engine = way(SLOW_EXP)
        try:
            results, samples = with_engine.trial(PAIR, context, [X], TrialLimits(0.05, 60.0, 60.0))
            with_engine.compiler.compile(PAIR, context).close()
        finally:
            with_engine.close()
    np.testing.assert_allclose(results[0], RIGHT, rtol=1e-6)
    assert min(samples) >= 0.004


@pytest.mark.full
def test_a_mixture_of_devices_is_placed_by_measurement(tmp_path: Path) -> None:
    on_cpu = OnCpu(slow="Cos", seconds=0.02)
    with world("eager") as devices:
        m = module(devices, Late(slow="Exp", seconds=0.02), on_cpu, devices={"on_cpu": "cpu"}, budget=60.0)
        result = m(X)
        assert devices.device().owns(result)
        np.testing.assert_allclose(devices.down(result), RIGHT, rtol=1e-6)
        placed = [(launch.engine, m.plan.get_device(launch)) for launch in m.plan.launches]
        assert placed == [
            (on_cpu.spec, "cpu"),
            ("late{seconds=0.02, slow=Exp}", "cuda:0"),
        ], str(m.explain())
        assert [(copy.source, copy.target) for copy in m.plan.copies] == [("cuda:0", "cpu"), ("cpu", "cuda:0")]
        path = tmp_path / "m.lock"
        write_placement(lock_module(m, [X], {}, 0.2), path)
        with pytest.raises(LockError, match="device of on_cpu"):
            module(devices, Late(slow="Exp", seconds=0.02), on_cpu, where="cpu", lock=path).plan_for(X)
