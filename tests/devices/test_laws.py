"""The laws on devices: generated graphs cut anywhere, with nodes on whichever device, compute what they do on the CPU."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

import xrt
from tests.devices.worlds import TOY, World, world
from xrt.comparison import BIT_EQUAL, compare_all
from xrt.engines import CompileContext
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toy import Toy
from xrt.errors import CompileRefused
from xrt.graph import Function
from xrt.partition.support_matrix import DeviceMap, SupportMatrix
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.runtime import on_device
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.generate import make_random_inputs, make_seeded_function
from xrt.testing.running import run_outputs
from xrt.verify.execution import compile_alone, run_regions

pytestmark = pytest.mark.slow

ORDERS = ("eager", "late", "random")
GRAPHS = pytest.mark.parametrize("first", range(0, 120, 10))
HERE, THERE = RecordingEngine(mark="here"), RecordingEngine(mark="there")
"""One engine twice: it tells by the spec where it runs."""


def graphs(first: int) -> list[tuple[int, Function, list[Any]]]:
    seeds = range(first, first + 10)
    results = [(seed, infer_shapes(drop_dead_nodes(make_seeded_function(seed)))) for seed in seeds]
    return [(seed, function, make_random_inputs(function, seed)) for seed, function in results]


def copies(values: Sequence[Any]) -> list[Any]:
    return [copies(value) if isinstance(value, list) else value.copy() if hasattr(value, "dtype") else value for value in values]


def right(function: Function, inputs: Sequence[Any]) -> list[Any]:
    return evaluate(function.replace(aliases=()), copies(inputs))


def down(devices: World, value: Any) -> Any:
    return value if value is None else devices.down(value)


def same(devices: World, results: Any, function: Function, inputs: Sequence[Any], what: str) -> None:
    """Demand the reference's results, bit for bit."""
    listed = [down(devices, value) for value in run_outputs(results, function)]
    comparison = compare_all(listed, right(function, inputs), BIT_EQUAL)
    assert comparison, f"{what}: {comparison.message}\n{function}"


def is_held(function: Function) -> bool:
    """Whether a device can have all of its nodes."""
    return all(SupportMatrix.of(function, [Toy(native="off")], DeviceMap("cuda")).supporting_engines)


@GRAPHS
def test_cut_law(first: int) -> None:
    """Law 1: cut anywhere, and each piece run on a device by itself."""
    for seed, function, inputs in graphs(first):
        chance = random.Random(seed)
        labels = sorted(chance.randrange(4) for _ in function.nodes)
        with world(ORDERS[seed % 3]) as devices:

            def run(piece: Function, data: Sequence[Any]) -> Sequence[Any]:
                context = on_device(f"cuda:{chance.randrange(2)}", CompileContext())  # noqa: B023  # it is run here
                try:
                    return compile_alone(Toy(native="off"), piece, data, context).run(data)
                except CompileRefused:  # it has what no device has: texts, narrow types
                    return right(piece, data)

            results = run_regions(function.replace(aliases=()), labels, copies(inputs), run)
            same(devices, results if len(results) > 1 else results[0], function, inputs, f"seed {seed}, cut by {labels}")


@GRAPHS
def test_fallback_law(first: int) -> None:
    """Law 4: what a device does not take is taken behind it; nothing is lost, wherever values come in and go out."""
    for seed, function, inputs in graphs(first):
        homes = ["cpu", "cuda"] if is_held(function) else ["cpu"]
        for home in homes:
            with world(ORDERS[seed % 3]) as simulation, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that something falls back is the matter
                devices = {HERE.spec: "cuda:1" if seed % 4 == 0 else "cuda", THERE.spec: "cpu"}
                m = simulation.module(function, [HERE, THERE], home, devices=devices, strict=True)
                same(simulation, m(*copies(inputs)), function, inputs, f"seed {seed} at {home}\n{m.plan}")


@GRAPHS
def test_mixture_law(first: int) -> None:
    """Law 5: nodes that alternate between the host and a device, or two devices, compute what each of them does."""
    for seed, function, inputs in graphs(first):
        other = "cuda:1" if is_held(function) and seed % 2 else "cpu"
        willing = SupportMatrix.of(function, [HERE, THERE], DeviceMap("cuda", {THERE.spec: other})).supporting_engines
        names = [(node.name, (at + seed) % 2) for at, node in enumerate(function.nodes)]
        pins = [
            f"name:{name}={(HERE, THERE)[to].spec}" for (name, to), may in zip(names, willing, strict=True) if to in may and name
        ]
        with world(ORDERS[seed % 3]) as simulation:
            devices = {HERE.spec: "cuda", THERE.spec: other}
            home = "cuda" if is_held(function) else "cpu"
            m = simulation.module(function, [HERE, THERE], home, devices=devices, strict=True, pins=pins, check=1.0)
            for _ in range(2):
                same(simulation, m(*copies(inputs)), function, inputs, f"seed {seed}\n{m.plan}")
            assert len(m.plan.launches) <= 1 or m.plan.copies or len({launch.device for launch in m.plan.launches}) == 1


def test_a_plan_that_is_not_all_toys_is_the_cpus_too() -> None:
    """Law 5 with another engine, to rounding: ONNX Runtime on the host between kernels of the device."""
    for seed, function, inputs in graphs(0):
        with world(ORDERS[seed % 3]) as devices, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            m = devices.module(function, ["ort", TOY], "cpu", devices={"ort": "cpu", "toy": "cuda"}, minimum_nodes=1)
            expected = run_outputs(xrt.XRTModule(function, ["ort", TOY])(*copies(inputs)), function)
            results = [down(devices, value) for value in run_outputs(m(*copies(inputs)), function)]
            comparison = compare_all(results, expected, BIT_EQUAL)
            assert comparison, f"seed {seed}: {comparison.message}\n{m.plan}"
