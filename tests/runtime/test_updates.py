"""Updates in place: computed in the input's array where nothing reads it later, copied and counted elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xrt
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.runtime.memory_plan import may_overlap

CACHE, NEW, AT = TensorType(DType.FLOAT32, (1, 512, 64)), TensorType(DType.FLOAT32, (1, 1, 64)), TensorType(DType.INT64, (1,))


def cached(read: tuple[str, ...] = ("present",), **changes: Any) -> Function:
    """Write a row of a cache (TensorScatter), and square what is read of it before or afterwards."""
    nodes = [Node("TensorScatter", ("cache", "x", "at"), ("present",), name="write").with_attributes(axis=1)]
    nodes += [Node("Mul", (name, name), (f"{name}_squared",), name=f"square_{name}") for name in read]
    outputs = [Value("present", CACHE), *(Value(f"{name}_squared", CACHE) for name in read)]
    given = (Value("cache", CACHE), Value("x", NEW), Value("at", AT))
    return Function(given, tuple(outputs), tuple(nodes), opsets={"": 24}, aliases=(("cache", "present"),)).replace(**changes)


def arrays(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [*(rng.standard_normal(t.shape).astype("float32") for t in (CACHE, NEW)), np.array([7])]


def module(function: Function, *engines: str, **options: Any) -> xrt.XRTModule:
    return xrt.XRTModule(function, engine=list(engines), strict=True, **options)


def check(m: Any, read: tuple[str, ...]) -> Any:
    """Call twice and compare with NumPy; return the profile."""
    cache, x, at = arrays()
    for step in range(2):
        before, expected = cache.copy(), cache.copy()
        at[0] += step
        expected[:, at[0]] = x[:, 0]
        results = m(cache, x, at)
        assert results[0] is cache
        np.testing.assert_array_equal(cache, expected)
        squares = {"cache": before, "present": expected}
        for name, result in zip(read, results[1:], strict=True):
            np.testing.assert_array_equal(result, squares[name] ** 2)
    return m.profile()


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_a_scatter_writes_the_input_itself(engine: str) -> None:
    m = module(cached(), engine)
    assert check(m, ("present",)).copies == ()
    assert m.explain().updates == ("cache <- present: in place",)


@pytest.mark.parametrize("pins", [["name:write=toy", "name:square_present=ort"], ["name:write=ort", "name:square_present=toy"]])
def test_two_regions_copy_nothing(pins: list[str]) -> None:
    m = module(cached(), "ort", "toy", pins=pins)
    assert check(m, ("present",)).copies == ()
    assert len(m.plan.launches) == 2


@pytest.mark.parametrize("first", [["name:square_cache=toy", "name:write=ort"], ["name:square_cache=ort", "name:write=toy"]])
def test_a_reader_in_an_earlier_region_does_not_force_a_copy(first: list[str]) -> None:
    nodes = cached(("cache",)).nodes
    ordered = cached(("cache",)).replace(nodes=[n if n.name != "write" else _after(n, "square_cache") for n in nodes])
    m = module(ordered, "ort", "toy", pins=first)
    assert check(m, ("cache",)).copies == ()
    assert m.explain().updates == ("cache <- present: in place",)


def _after(node: Node, name: str) -> Node:
    from dataclasses import replace

    return replace(node, control=(name,))


def test_a_reader_in_a_later_region_forces_a_copy_that_is_counted_and_named() -> None:
    ordered = cached(("cache",))
    nodes = [n if n.name == "write" else _after(n, "write") for n in ordered.nodes]
    m = module(ordered.replace(nodes=nodes), "ort", "toy", pins=["name:square_cache=toy", "name:write=ort"])
    (copy,) = check(m, ("cache",)).copies
    assert (copy.input, copy.output, copy.calls, copy.nbytes) == ("cache", "present", 2, 2 * CACHE.nbytes)
    assert copy.reason == "xrt_toy_1 may read it after xrt_ort_0 has written it"
    assert str(copy) == f"cache <- present: 262,144 bytes copied in 2 calls, since {copy.reason}"
    assert str(copy) in str(m.profile())
    assert f"updates cache <- present: copied, since {copy.reason}" in str(m.explain())


def test_a_second_reader_in_the_region_forces_a_copy() -> None:
    (copy,) = check(module(cached(("cache",)), "ort"), ("cache",)).copies
    assert copy.reason == "engine 'ort' cannot write it in place in xrt_ort_0"
    assert check(module(cached(("cache",)), "toy"), ("cache",)).copies == ()  # it lets the other one read first


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_an_input_that_overlaps_another_is_updated_by_a_copy(engine: str) -> None:
    m = module(cached(), engine)
    cache, _, at = arrays()
    row, expected = cache[:, 3:4], cache.copy()
    expected[:, 7] = expected[:, 3]
    present, squared = m(cache, row, at)
    assert present is cache
    np.testing.assert_array_equal(cache, expected)
    np.testing.assert_array_equal(squared, expected**2)
    assert m.profile().copies[0].calls == 1


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_a_bound_call_updates_in_place(engine: str) -> None:
    m, (cache, x, at) = module(cached(), engine), arrays()
    bound = m.bind(cache, x, at)
    assert bound.outputs[0] is cache
    for place in (1, 2):
        at[0], expected = place, cache.copy()
        expected[:, place] = x[:, 0]
        bound()
        np.testing.assert_array_equal(cache, expected)
        np.testing.assert_array_equal(bound.outputs[1], expected**2)
    assert m.profile().copies == ()


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_a_bound_call_with_a_buffer_fills_it_and_updates_the_input(engine: str) -> None:
    m, (cache, x, at) = module(cached(), engine), arrays()
    out, expected = np.zeros_like(cache), cache.copy()
    expected[:, 7] = x[:, 0]
    bound = m.bind(cache, x, at, out=[out, None])
    assert bound()[0] is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(cache, expected)


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_the_callers_buffer_holds_the_output_too(engine: str) -> None:
    m, (cache, x, at) = module(cached(), engine), arrays()
    out, expected = np.zeros_like(cache), cache.copy()
    expected[:, 7] = x[:, 0]
    m(cache, x, at, out=[out, None])
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(cache, expected)


def test_memory_that_is_shared_is_found() -> None:
    block = np.zeros((8, 4))
    apart, rows, columns = block[:4], block[4:], block[:, :2]
    assert not may_overlap([0], [apart, rows])
    assert may_overlap([0], [apart, columns])
    assert may_overlap([0], [columns, rows]), "what is not in C order cannot be written to by an engine"
    assert may_overlap([1], [block, rows]) and may_overlap([0], [block, None, [rows]])
    assert not may_overlap([2], [block, block, np.zeros(3)])
