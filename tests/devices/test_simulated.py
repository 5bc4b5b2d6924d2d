"""The simulated devices themselves: what is wrong on them is seen. A test kit that sees nothing proves nothing."""

from __future__ import annotations

import gc
from contextvars import ContextVar, Token

import numpy as np
import pytest

from tests.devices.models import Net, numbers
from tests.devices.worlds import world
from xrt.errors import DeviceError
from xrt.runtime.device_program import DeviceCall, MultiDeviceProgram
from xrt.runtime.devices import device
from xrt.testing.simulated import simulate_devices
from xrt.testing.simulated.array import Order, WorkItem

X, W = numbers(3, 4), numbers(4, 5, seed=1)


def read(ordered: bool, order: Order = "late", free: bool = False) -> None:
    """Write on one stream and read on another; with ``free``, give the memory back before that is done."""
    with simulate_devices(order=order):
        there = device("cuda")
        first, two = there.new_stream(), there.new_stream()
        with there.activate(first):
            array = there.upload(X)
        if ordered:
            there.follow(two, first)
        with there.activate(two):
            result = array + 1
            if free:
                del array
                gc.collect()
            np.testing.assert_array_equal(there.download(result), X + 1)


@pytest.mark.parametrize(
    ("ordered", "order", "free", "text"),
    [
        (False, "eager", False, r"add reads what is written on stream \d+, and nothing orders stream"),
        (False, "late", False, "Arrays are not equal"),
        (True, "late", True, "the next owner writes what is read"),
    ],
    ids=["nothing orders it", "nothing is there yet", "freed meanwhile"],
)
def test_a_read_on_another_stream_is_seen_as_a_race(ordered: bool, order: Order, free: bool, text: str) -> None:
    for fine in ("eager", "random"):
        read(ordered=True, order=fine)
    with pytest.raises(AssertionError, match=text):
        read(ordered, order, free)


def test_pinned_memory_that_is_given_back_before_its_copy_is_spoilt() -> None:
    with simulate_devices():
        there = device("cuda")
        stream = there.new_stream()
        sent = there.copy_in(X, stream)
        array = sent.array
        del sent
        gc.collect()
        with there.activate(stream):
            assert np.isnan(array.get()).all()


def test_a_copy_to_the_host_that_is_not_waited_for_is_not_there() -> None:
    with simulate_devices():
        there = device("cuda")
        stream = there.new_stream()
        with there.activate(stream):
            sent = there.copy_out(there.upload(X), stream)
        assert np.isnan(sent.array).all()
        there.wait_for(there.record_event(stream))
        np.testing.assert_array_equal(sent.array, X)


def test_arrays_of_two_devices_do_not_meet() -> None:
    with simulate_devices():
        first, two = device("cuda:0").upload(X), device("cuda:1")
        with (
            two.activate(two.current_stream()),
            pytest.raises(ValueError, match="an array of cuda:0 is used while cuda:1 is current"),
        ):
            first + 1


def test_numpys_arrays_and_what_cupy_has_not_are_refused() -> None:
    with simulate_devices():
        there = device("cuda")
        array = there.upload(X)
        with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy\.ndarray'>"):
            array + X
        with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy\.ndarray'>"):
            X + array
        with pytest.raises(TypeError, match=r"max\(\) got an unexpected keyword argument 'initial'"):
            there.xp.max(array, initial=0)
        with pytest.raises(AttributeError, match="has no 'put_mask'"):
            there.xp.put_mask(array)
        with pytest.raises(TypeError, match="Unsupported dtype object"):
            there.upload(np.array(["text"], object))
        with pytest.raises(DeviceError, match="there are 2 simulated devices"):
            device("cuda:2")


@pytest.mark.parametrize("order", ["eager", "late", "random"])
def test_work_sets_no_variable_of_the_context_that_lets_it_run(order: Order) -> None:
    """A finalizer may let it run while the context is changed, which ends CPython before 3.12 (its issue 148891)."""
    variable: ContextVar[str] = ContextVar("variable", default="of the caller")
    with simulate_devices(order=order) as machine:
        stream, seen = machine.stream("a device"), []
        machine.put(stream, WorkItem("work", lambda: seen.append(variable.set("of the work").old_value)))
        machine.wait(machine.event(stream))
    assert seen == [Token.MISSING]
    assert variable.get() == "of the caller"


def test_a_function_of_two_host_arrays_fills_the_array_in_out() -> None:
    with simulate_devices():
        cuda = device("cuda")
        out = cuda.upload(np.zeros(2, "float32"))
        assert cuda.xp.add(np.ones(2, "float32"), np.ones(2, "float32"), out=out) is out
        assert cuda.download(out).tolist() == [2, 2]


@pytest.mark.parametrize("order", ["wait_for_caller", "make_caller_wait"])
def test_a_missing_order_is_caught(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MultiDeviceProgram, order, lambda *_: None)
    with pytest.raises(AssertionError, match="work raced on a simulated device"), world("late") as devices:  # noqa: PT012  # it is seen at the end
        m = devices.module(Net())
        m(devices.up(X), W)[0] + 1
        devices.down(m(X, W))


def test_a_copy_that_is_not_waited_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceCall, "wait_for", lambda *_: None)
    with world("late") as devices:
        m = devices.module(Net(), where="cpu", devices={"toy": "cuda"})
        assert np.isnan(m(X, W)[0]).all()
