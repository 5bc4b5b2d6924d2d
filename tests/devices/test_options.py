"""What may be asked of devices, and how a plan places nodes on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import xrt
from tests.devices.models import Forked, Net, numbers
from tests.devices.worlds import TOY
from tests.partition.drawn import engine, function, node
from xrt.cache import CompileCache
from xrt.engines.toy import Toy
from xrt.errors import DeviceError, OptionError
from xrt.partition import Plan, partition

REFUSED = [
    (
        {"devices": {"art": "cpu"}},
        OptionError,
        "devices names 'art', which is not in the list of engines: ort, toy, toy{native=off}",
    ),
    ({"devices": {"ort": "gpu"}}, DeviceError, "unknown device 'gpu'; a device is 'cpu', 'cuda' or 'cuda:N'."),
    ({"devices": ["ort"]}, OptionError, "devices maps engines to devices, such as {'ort': 'cuda', 'tvm': 'cpu'}; got ['ort']"),
    (
        {"isolate": "toy"},
        OptionError,
        "isolate= is for engines on the cpu: arrays on cuda do not cross to another process, where toy{native=off} would run",
    ),
    (
        {"isolate": xrt.Isolation("ort", run=True)},
        OptionError,
        "isolate= is for engines on the cpu: arrays on cuda do not cross to another process, where ort would run",
    ),
    (
        {"isolate": xrt.Isolation("ort", memory_limit=1 << 30)},
        OptionError,
        "memory_limit= bounds the address space of a process, and a driver of cuda takes more of it than there is memory; ",
    ),
]


@pytest.mark.parametrize(("options", "error", "text"), REFUSED)
def test_what_cannot_be_asked_is_reported(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        xrt.XRTModule(Net(), [TOY, "ort"], "cuda", **options)
    assert str(caught.value).startswith(text)


def test_an_engine_that_does_not_run_there_is_reported() -> None:
    with pytest.raises(DeviceError, match=r"^devices asks for picky on 'cuda', and it runs on cpu$"):
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
    plan = partition(function(nodes, "c"), [engine("red", "Red"), engine("all")], device="cuda", devices={"all": "cpu"})
    assert placed(plan) == [("cuda:0", ("a",)), ("cpu", ("b",)), ("cuda:0", ("c",))]
    assert [(copy.value, copy.source, copy.target) for copy in plan.copies] == [("a", "cuda:0", "cpu"), ("b", "cpu", "cuda:0")]


def test_a_plan_on_devices_is_a_value_and_needs_none() -> None:
    options: dict[str, Any] = {"devices": {"ort": "cpu"}, "pins": ["Exp=ort"], "strict": True, "cache": CompileCache()}
    plan = xrt.XRTModule(Forked(), [TOY, "ort"], "cuda", **options).plan_for(numbers(2, 2))
    assert plan.copies and Plan.from_bytes(plan.to_bytes()) == plan


def test_a_plan_on_the_cpu_has_no_copies() -> None:
    m = xrt.XRTModule(Forked(), [TOY, "ort"], pins=["Exp=ort"], cache=CompileCache())
    plan = m.plan_for(numbers(2, 2))
    assert plan.copies == () and "copy" not in str(plan)
