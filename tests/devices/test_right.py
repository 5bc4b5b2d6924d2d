"""Results on devices held against the reference on the host: calls, whole plans, and the smallest part that is wrong."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import Command
from tests.devices.models import Counter, Forked, Net, Two, numbers
from tests.devices.worlds import TOY, World, traffic, world
from tests.module.test_faults import FAULTS, OPS, RIGHT, X as HALVES, chain
from tests.verify.wrong import Wrong, long_model
from xrt.errors import FallbackWarning, OutOfDeviceMemory
from xrt.formats.onnx import save
from xrt.testing.fault_injection import FaultyEngine
from xrt.verify import Verdict

X, W, ONE = numbers(3, 4), numbers(4, 5, seed=1), np.ones((3, 4), "float32")
WRONG = Wrong(native="off")


@pytest.mark.parametrize("place", ["Abs", "Exp", "*"])
@pytest.mark.parametrize(("told", "check", "text"), FAULTS)
def test_a_fault_on_a_device_is_contained_and_reported(world: World, told: Any, check: Any, text: str, place: str) -> None:
    m = world.module(chain(*OPS), [FaultyEngine(takes=place, **told), TOY], check=check)
    with pytest.warns(FallbackWarning) as caught:
        for _ in range(3):
            np.testing.assert_allclose(world.down(m(HALVES)), RIGHT, rtol=1e-5)
    (line,) = [str(warning.message) for warning in caught if warning.category is FallbackWarning]
    assert "xrt_faulty_" in line and "placed on another engine" in line
    assert m.plan.used_engines == (TOY,)
    text = "returned float32[] for output" if told == {"how": "scalar"} else text  # an element of a device is an array too
    assert text.replace("\\", "") in str(m.explain())


@pytest.mark.parametrize("where", ["cuda", "cuda:1"])
@pytest.mark.parametrize("how", ["raise", "value"])
def test_an_update_in_place_is_not_made_twice(how: Any, where: str) -> None:
    """The call is made again on what the input held; what the failed one had begun must not read it meanwhile."""
    for order in ("eager", "late", "random"):
        with world(order) as devices, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            m = devices.module(Counter(), [FaultyEngine(how=how, nth=2), TOY], where, check=1.0)
            state = devices.up(X, where)
            for _ in range(3):
                m(state, devices.up(ONE, where))
            np.testing.assert_array_equal(devices.down(state), X + ONE + ONE + ONE)
        assert len(caught) == 1


def test_an_input_that_is_written_to_is_seen_as_it_was() -> None:
    """The reference was given what the engine had left of an input that it updates."""
    with world("late") as devices:
        m = devices.module(Counter(), "toy", check=1.0)
        state = devices.up(X)
        m(state, devices.up(ONE))
        m(state, devices.up(ONE))
        assert "2 calls so far" in str(m.explain()) and "not checked" not in str(m.explain())


@pytest.mark.parametrize("check", ["first", 0.5])
def test_calls_that_are_right_stay_where_they_are(world: World, check: Any) -> None:
    m = world.module(Net(), "toy", check=check)
    for seed in range(4):
        m(numbers(3, 4, seed=seed), W)
    assert m.plan.used_engines == ("toy",)
    assert "checked against toy{native=off}" in str(m.explain()) and "not checked" not in str(m.explain())


def test_only_a_checked_call_waits() -> None:
    with world("late") as devices:
        m = devices.module(Net(), "toy", check="first")
        m(X, W)
        waits = devices.machine.waits
        m(X, W)
        assert devices.machine.waits == waits and traffic(m).waits == 0  # type: ignore[union-attr]


def test_a_plan_on_a_device_is_verified(world: World) -> None:
    report = world.module(Net(), "toy").verify(world.up(X), W)
    (region,) = report.regions
    assert report and region.inner and all(check.judgement.verdict is Verdict.AGREES for check in region.inner)


def test_a_plan_over_several_devices_is_verified() -> None:
    with world("random") as devices:
        assert devices.module(Two(), "toy").verify(X)
        assert {str(launch.device) for launch in devices.module(Two(), "toy").plan_for(X).launches} == {"cuda:0", "cuda:1"}
        mixed = devices.module(Forked(), [TOY, "ort"], devices={"ort": "cpu"}, pins=["Exp|Sqrt=ort"], strict=True)
        assert len(mixed.verify(X).regions) > 1 and mixed.verify(X)


@pytest.mark.slow
def test_a_wrong_kernel_on_a_device_is_found_and_cut_out(world: World) -> None:
    m = world.module(long_model(count=24, at=13), [WRONG, TOY], maximum_nodes=8, strict=True)
    report = m.verify(HALF)
    assert not report
    assert [region.name for region in report.differing] == ["xrt_wrong_1"]
    assert report.differing[0].differing[0].node == "n13"
    culprit = m.bisect(HALF)
    assert culprit is not None and [node.name for node in culprit.function.nodes] == ["n13"]
    assert all(isinstance(value, np.ndarray) for value in (*culprit.inputs, *culprit.expected))


HALF = np.full((4, 8), 0.5, np.float32)


def test_an_engine_that_raises_on_a_device_is_a_culprit() -> None:
    with world("late") as devices:
        culprit = devices.module(chain(*OPS), [FaultyEngine(takes="Exp|Cos"), TOY]).bisect(HALVES)
        assert culprit is not None and "set to fail in run" in culprit.message and culprit.engine.startswith("faulty")


def test_a_lack_of_memory_while_verifying_is_reported_as_such() -> None:
    with world("late", limit=50_000) as devices:
        m = devices.module(Net(), "toy")
        with pytest.raises(OutOfDeviceMemory, match=r"requested 0\.1 MB; "):
            m.verify(numbers(8000, 4), W)
        assert m.verify(X, W)


def test_devices_are_the_commands_too(command: Command, tmp_path: Path) -> None:
    save(chain(*OPS), tmp_path / "m.onnx")
    with world("late"):
        for name, text in (("verify", "the whole: agrees"), ("bisect", "no region differs")):
            code, out, _ = command(name, tmp_path / "m.onnx", "--device", "cuda", "--engine", "toy")
            assert code == 0 and text in out
