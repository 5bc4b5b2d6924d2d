"""Plans on devices: options, results, copies, order, waits, errors, memory that runs out; simulated, and on CUDA."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.devices.models import Counter, Forked, Net, Two, numbers, odd
from tests.devices.worlds import TOY, World, listed, same, traffic, world
from tests.partition.drawn import engine, function, node
from tests.runtime.test_program import read_trace
from xrt import RunOptions
from xrt.builder.tracing import trace
from xrt.comparison import compare_all, tolerance_for
from xrt.engines import CompileContext, Executable
from xrt.engines.toy import Toy
from xrt.errors import CompileRefused, DeviceError, InputError, OptionError, OutOfDeviceMemory
from xrt.models import load, sample_inputs
from xrt.partition import Plan, partition
from xrt.partition.support_matrix import DeviceMap


@dataclass(frozen=True)
class Saving(Toy):
    """Toy, which says that it saves, and on a device after all does not."""

    name: ClassVar[str] = "saving"

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        raise CompileRefused("it is on a device")


X, W = numbers(3, 4), numbers(4, 5, seed=1)
CPU = xrt.XRTModule(Net(), TOY)
SPLIT = {"devices": {"ort": "cpu"}, "pins": ["Exp|Sqrt=ort"], "strict": True}


class TestResults:
    def test_they_are_fresh(self, world: World) -> None:
        m = world.module(Net())
        first = world.down(m(X, W))
        saved = m(X, W)
        m(X + 1, W)
        same(world, saved, first)

    def test_of_several_signatures(self, world: World) -> None:
        m = world.module(Net())
        for rows in (2, 3, 2, 5, 3):
            same(world, m(numbers(rows, 4), W), CPU(numbers(rows, 4), W))

    @pytest.mark.parametrize("graph", [False, True], ids=["played", "recorded"])
    def test_of_threads_that_call_at_once(self, world: World, graph: bool) -> None:
        m = world.module(Net(), cuda_graph=graph)

        def call(seed: int) -> None:
            x = numbers(3, 4, seed=seed)
            for _ in range(5):
                same(world, m(x, W), CPU(x, W))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(4)))

    def test_of_a_constant_an_input_and_a_value_that_is_returned_twice(self, world: World) -> None:
        data = world.up(X)
        results = world.module(trace(odd, X))(data)
        same(world, results, [-X, X, -X, np.array([1, 2], "float32")])
        assert results[1] is not data and results[0] is not results[2]


class TestCopies:
    def test_inputs_of_the_host_are_copied_once_each_call(self, world: World) -> None:
        m = world.module(Net())
        m(X, W)
        m(X, W)
        result = traffic(m)
        assert (result.calls, result.copies_in, result.bytes_in, result.copies_out) == (2, 4, 2 * (X.nbytes + W.nbytes), 0)

    def test_arrays_of_the_device_are_not_copied(self, world: World) -> None:
        m, x, w = world.module(Net()), world.up(X), world.up(W)
        for _ in range(3):
            same(world, m(x, w), CPU(X, W))
        assert (traffic(m).copies_in, traffic(m).copies_out, traffic(m).waits) == (0, 0, 0)

    def test_a_boundary_is_copied_once_however_many_read_it(self, world: World) -> None:
        m = world.module(Forked(), [TOY, "ort"], **SPLIT)
        same_as = xrt.XRTModule(Forked(), [TOY, "ort"], pins=SPLIT["pins"], strict=True)
        results = m(X)
        np.testing.assert_allclose(world.down(results), same_as(X), rtol=1e-6)
        out = [copy for copy in m.plan.copies if copy.target == "cpu"]
        back = [copy for copy in m.plan.copies if copy.source == "cpu"]
        assert len({copy.value for copy in out}) == len(out) and len({copy.value for copy in back}) == len(back)
        assert (traffic(m).copies_out, traffic(m).copies_in) == (len(out), len(back) + 1), "x comes from the host"

    def test_they_are_reported(self, world: World) -> None:
        m = world.module(Forked(), [TOY, "ort"], **SPLIT)
        m(X)
        copies = m.plan.copies
        text = str(m.explain())
        assert f"copies between devices: {len(copies)} ({sum(copy.nbytes or 0 for copy in copies):,} bytes)" in text
        assert all(f"copy {copy}" in str(m.plan) and f"  {copy}" in text for copy in copies)
        assert "from cuda:0 to cpu for xrt_ort_" in text and "; device cuda:0" in text
        assert "1 call" in str(m.profile())

    def test_a_timeline_has_each_copy_on_its_device(self, world: World, tmp_path: Path) -> None:
        m = world.module(Forked(), [TOY, "ort"], **SPLIT)
        expected = m(X)
        same(world, m(X, options=RunOptions(profile=True)), world.down(expected))
        m.profile().to_trace(tmp_path / "t.json")
        events = read_trace(tmp_path / "t.json")
        copies = [event for event in events if event["cat"] == "copy"]
        crossing = [("x", "cpu", "cuda:0"), *((copy.value, copy.source, copy.target) for copy in m.plan.copies)]
        results = [(event["name"], event["args"]["from"], event["args"]["to"]) for event in copies]
        assert sorted(results) == sorted((f"copy {name} to {target}", source, target) for name, source, target in crossing)
        assert all(event["args"]["bytes"] == X.nbytes for event in copies)
        call = next(event for event in events if event["cat"] == "call")
        host = {event["pid"] for event in events if event["cat"] in ("call", "ort")}
        assert host == {call["pid"]}, "ort runs on the host here"
        assert {event["pid"] for event in events if event["cat"] in ("copy", TOY)}.isdisjoint(host)

    def test_a_module_on_the_cpu_gives_arrays_of_the_host(self, world: World) -> None:
        m = world.module(Forked(), [TOY, "ort"], "cpu", devices={"ort": "cpu", "toy": "cuda"}, pins=SPLIT["pins"], strict=True)
        result = m(X)
        assert isinstance(result, np.ndarray)
        np.testing.assert_allclose(result, xrt.XRTModule(Forked(), TOY)(X), rtol=1e-5)

    def test_two_devices_of_a_kind_are_two(self) -> None:
        for order in ("eager", "late", "random"):
            with world(order) as devices:
                m = devices.module(Two())
                a = np.maximum(X, 0) + X
                same(devices, m(X), np.tanh(a) * a)
                assert [launch.device for launch in m.plan.launches] == ["cuda:0", "cuda:1"]
                assert (traffic(m).copies_in, traffic(m).copies_across, traffic(m).copies_out) == (1, 2, 0)
                assert devices.machine.copies.count("across") == 2


class TestOrder:
    def test_it_waits_when_it_is_asked_to(self) -> None:
        with world("late") as devices:
            m = devices.module(Net())
            m(X, W)
            before = devices.machine.waits
            m(X, W, options=RunOptions(block=True))
            assert (devices.machine.waits - before, traffic(m).waits) == (1, 1)

    def test_a_region_of_the_host_is_waited_for_once(self, world: World) -> None:
        m = world.module(Forked(), [TOY, "ort"], **SPLIT)
        m(X)
        regions = sum(launch.device == "cpu" for launch in m.plan.launches)
        assert traffic(m).waits <= regions, "once for each region of the host, if its copies are not there yet"

    def test_what_the_caller_computes_before_and_after_is_in_order(self, world: World) -> None:
        m, there = world.module(Net()), world.device()
        stream = there.new_stream()
        with there.activate(stream):
            x, w = there.upload(X) * 2, there.upload(W)
            for _ in range(3):
                p, _ = m(x, w)
                x = x + there.xp.sum(p)  # reads a result, and makes the next input, on the caller's stream
            expected = X * np.float32(2)
            for _ in range(3):
                expected = expected + CPU(expected, W)[0].sum()
            same(world, there.download(x), expected)


class TestErrors:
    def test_an_array_of_a_device_given_to_a_module_on_the_cpu(self, world: World) -> None:
        with pytest.raises(DeviceError, match=r"^input 'x' \(a .*\) is on cuda:0, and the module runs on cpu; copy it there$"):
            CPU(world.up(X), W)

    def test_an_array_of_another_device(self) -> None:
        with world("late") as devices:
            m, x = devices.module(Net(), where="cuda:1"), devices.up(X)
            for _ in range(2):  # the long way, and beside a prepared call
                with pytest.raises(
                    DeviceError, match=r"^input 'x' .* is on cuda:0, and the module runs on cuda:1; copy it there$"
                ):
                    m(x, W)
                m(X, W)

    def test_a_buffer_of_the_host(self, world: World) -> None:
        with pytest.raises(DeviceError, match=r"^out\[0\] for output 'p' is not on cuda:0, where the module runs"):
            world.module(Net())(X, W, out=[np.zeros((3, 5), "float32"), None])

    def test_a_buffer_that_does_not_fit(self, world: World) -> None:
        with pytest.raises(InputError, match=r"^out\[0\] for output 'p' must be float32\[3,5\]; got float32\[3, 4\]$"):
            world.module(Net())(X, W, out=[world.up(X), None])

    def test_what_is_no_stream(self, world: World) -> None:
        with pytest.raises(DeviceError, match=r"^stream= must be a"):
            world.module(Net())(X, W, options=RunOptions(stream="fast"))

    def test_a_device_that_is_not_there(self) -> None:
        with world("late") as devices:
            m = devices.module(Net(), where="cuda:7")
            assert str(m.plan_for(X, W)).startswith("plan: ")  # a plan touches no device
            with pytest.raises(DeviceError, match=r"^device 'cuda:7' is not available: there are 2 simulated devices$"):
                m(X, W)

    def test_memory_is_given_back(self) -> None:
        with world("late") as devices:
            m = devices.module(Net())
            m(X, W, options=RunOptions(block=True))
            values = devices.machine.used["cuda:0"]
            for _ in range(10):
                m(X, W)
            devices.device().wait([devices.device().current_stream()])
            m(X, W, options=RunOptions(block=True))
            assert devices.machine.used["cuda:0"] <= values + 4 * (X.nbytes + W.nbytes) * 2


class TestFaults:
    @pytest.mark.slow
    def test_a_compile_in_a_process_of_its_own_needs_no_array_of_another(self) -> None:
        with world("late") as devices:
            m = devices.module(Net(), Saving(native="off"), isolate=xrt.Isolation("saving", time_limit=60), strict=True)
            same(devices, m(X, W), CPU(X, W))
            assert "compiles in a process of its own" in str(m.explain())

    @pytest.mark.slow
    def test_an_engine_of_the_cpu_in_a_mixture_runs_in_a_process_of_its_own(self) -> None:
        with world("random") as devices:
            m = devices.module(Forked(), [TOY, "ort"], isolate=xrt.Isolation("ort", run=True), **SPLIT)
            np.testing.assert_allclose(devices.down(m(X)), xrt.XRTModule(Forked(), TOY)(X), rtol=1e-5)
            m.close()


BERT = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 50}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("bert", BERT), ("squeezenet", {})])
def test_a_model_computes_what_it_does_on_the_cpu(world: World, name: str, sizes: dict[str, int]) -> None:
    model = load(name, **sizes)
    inputs = sample_inputs(model, seed=0)
    expected = xrt.XRTModule(model, TOY)(**inputs)
    m = world.module(model, cuda_graph=True)
    for _ in range(3):  # played, recorded, replayed where it can be
        difference = compare_all(listed(world.down(m(**inputs))), listed(expected), tolerance_for("float32", "network"))
        assert difference, difference.message  # products depend on where their operands lie in memory, and on the processor
    # CuPy calls cuBLAS in no capture.
    assert ("\na graph of the device" if world.machine else "cuBLAS API during stream capture") in str(m.explain())
    assert (traffic(m).copies_out, traffic(m).waits) == (0, 0)


TALL = numbers(40, 4)
TOLD = re.compile(
    r"^cuda:[01] is out of memory: .+ requested ([0-9,.]+ (MB|bytes)|an unknown amount of memory); .+ are free\. The module"
)


class Weighty(xrt.Graph):
    """A model with a constant of its own, which is an output too."""

    def build(self, x: Any) -> Any:
        w = xrt.ops.Constant(value=numbers(4, 60, seed=2))
        return {"y": xrt.ops.Relu(xrt.ops.MatMul(x, w)), "w": w, "x": x, "t": xrt.ops.Transpose(xrt.ops.Neg(x), perm=[1, 0])}


CASES: dict[str, tuple[xrt.Graph, Callable[[], list[Any]], dict[str, Any]]] = {
    "plain": (Net(), lambda: [TALL, W], {}),
    "weights": (Weighty(), lambda: [TALL], {}),
    "updates": (Counter(), lambda: [TALL.copy(), np.ones_like(TALL)], {}),
    "checked": (Net(), lambda: [TALL, W], {"engine": "toy", "check": 1.0}),
    "recorded": (Net(), lambda: [TALL, W], {"cuda_graph": True}),
    "two devices": (Two(), lambda: [TALL], {}),
    "a mixture": (Forked(), lambda: [np.abs(TALL)], {"engine": [TOY, "ort"], **SPLIT}),
}
LIMITS = [0, 200, 700, 900, 1_500, 2_000, 2_500, 3_000, 3_500, 4_000, 5_000, 6_000, 8_000, 10_000, 14_000, 60_000]


def starved(found: World, limit: int, call: Callable[[], Any]) -> tuple[Any, str]:
    """Make the call three times with so little memory; return the last results, or what the last error says."""
    found.machine.limit = limit
    output, result = "", None
    for _ in range(3):
        try:
            result, output = call(), ""
        except MemoryError as error:
            output = str(error)
    found.machine.limit = 1 << 30
    assert not output or TOLD.match(output), output
    return result, output


@pytest.mark.slow
@pytest.mark.parametrize("bound", [False, True], ids=["called", "bound"])
@pytest.mark.parametrize("name", CASES)
def test_every_amount_of_memory_is_enough_or_is_reported_and_the_module_goes_on(name: str, bound: bool) -> None:
    model, inputs, options = CASES[name]
    met = set()
    for limit in LIMITS:
        with world("late") as devices, warnings.catch_warnings():
            warnings.simplefilter("error")  # a lack of memory is no fault of an engine: nothing is placed elsewhere
            m, expected = devices.module(model, **options), xrt.XRTModule(model, TOY)(*inputs())
            call = (lambda: m.bind(*inputs())()) if bound else (lambda: m(*inputs()))  # noqa: B023  # they are called here
            result, output = starved(devices, limit, call)
            met.add(bool(output))
            for results in (call(), *([] if output else [result])):
                for got, want in zip(listed(devices.down(results)), listed(expected), strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert met == {True, False}, "some amounts were too little, and some were enough"


def test_weights_that_find_no_room_are_reported_by_the_region_that_has_them() -> None:
    with (
        world("late", limit=500) as devices,
        pytest.raises(OutOfDeviceMemory, match=r"^cuda:0 is out of memory: engine 'toy\{native=off\}' in xrt_toy_0 "),
    ):
        devices.module(Weighty()).compile(TALL)


@pytest.mark.slow
def test_a_lack_of_memory_while_tuning_puts_one_engine_out_of_the_race() -> None:
    with world("eager", limit=3_000) as devices, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = devices.module(Weighty(), [TOY, "auto"], budget=60.0)
        with pytest.raises(OutOfDeviceMemory):
            m(numbers(100, 4))
        devices.machine.limit = 1 << 30
        assert len(m(TALL)) == 4


ACROSS = "isolate= is for engines on the cpu: {} would run in another process, by run=True or because it cannot save executables"
REFUSED = [
    ({"devices": {"art": "cpu"}}, OptionError,
     "devices names 'art', which is not in the list of engines: ort, toy, toy{native=off}"),
    ({"devices": {"ort": "gpu"}}, DeviceError, "unknown device 'gpu'; a device is 'cpu', 'cuda' or 'cuda:N'."),
    ({"devices": ["ort"]}, OptionError, "devices maps engines to devices, such as {'ort': 'cuda', 'tvm': 'cpu'}; got ['ort']"),
    ({"isolate": "toy"}, OptionError, ACROSS.format(TOY)),
    ({"isolate": xrt.Isolation("ort", run=True)}, OptionError, ACROSS.format("ort")),
    ({"isolate": xrt.Isolation("ort", memory_limit=1 << 30)}, OptionError,
     "memory_limit= limits the address space of a process, of which a driver of cuda reserves more than there is memory; "),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "text"), REFUSED)
def test_what_cannot_be_asked_is_reported(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        xrt.XRTModule(Net(), [TOY, "ort"], "cuda", **options)
    assert str(caught.value).startswith(text)


def test_an_engine_that_does_not_run_there_is_reported() -> None:
    with pytest.raises(DeviceError, match=r"^devices places picky on 'cuda', but it runs on cpu$"):
        xrt.XRTModule(Net(), [Picky(), TOY], devices={"picky": "cuda"})


@dataclass(frozen=True)
class Picky(Toy):
    name: ClassVar[str] = "picky"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)


def placed(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(plan.get_device(launch), launch.nodes) for launch in plan.launches]


def test_two_names_of_one_device_are_one() -> None:
    nodes = [node("Red", "x", "a", name="a", device="cuda"), node("Red", "a", "b", name="b", device="cuda:0")]
    plan = partition(function(nodes, "b"), [engine("red", "Red")])
    assert placed(plan) == [("cuda:0", ("a", "b"))]


def test_a_node_that_names_no_device_goes_along_only_where_its_engine_takes_it() -> None:
    nodes = [node("Red", "x", "a", name="a", device="cuda:1"), node("Red", "a", "b", name="b")]
    assert placed(partition(function(nodes, "b"), [engine("red", "Red")])) == [("cuda:1", ("a", "b"))]

    class Fixed(type(engine("red", "Red"))):  # type: ignore[misc]  # a class made for the test
        def why_not(self, node: Any, function: Any) -> str | None:
            return "only what says so" if node.name == "b" and node.device.startswith("cuda") else None

    plan = partition(function(nodes, "b"), [Fixed()])
    assert placed(plan) == [("cuda:1", ("a",)), ("cpu", ("b",))]
    assert [str(copy) for copy in plan.copies] == [
        "x: float32[4] from cpu to cuda:1 for xrt_red_0",
        "a: float32[4] from cuda:1 to cpu for xrt_red_1",
    ]


def test_a_device_of_an_engine_is_a_constraint() -> None:
    nodes = [node("Red", "x", "a", name="a"), node("Blue", "a", "b", name="b"), node("Red", "b", "c", name="c")]
    plan = partition(function(nodes, "c"), [engine("red", "Red"), engine("all")], device_map=DeviceMap("cuda", {"all": "cpu"}))
    assert placed(plan) == [("cuda:0", ("a",)), ("cpu", ("b",)), ("cuda:0", ("c",))]
    assert [(copy.value, copy.source, copy.target) for copy in plan.copies] == [("a", "cuda:0", "cpu"), ("b", "cpu", "cuda:0")]
