"""What the tests of the laws share: engines that are doubles of toy, plans by chance, and comparison on the side of the law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st

from xrt.comparison import BIT_EQUAL, Comparison, compare_all
from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.graph import Function
from xrt.partition import Pin
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.running import as_planned
from xrt.testing.strategies import EVERYTHING, Form, functions, make_random_inputs
from xrt.verify.execution import run_alone

__all__ = ["bounded", "doubles", "living", "on_toy", "outputs_of", "pins", "same_bits"]

bounded = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def doubles(count: int = 3) -> list[GraphCompiler]:
    """Return engines that all compute as toy does, and that a plan cannot take for one another."""
    return [RecordingEngine(mark=f"double{number}") for number in range(count)]


@st.composite
def living(draw: st.DrawFn, form: Form = EVERYTHING) -> Function:
    """Return a strategy for Functions without dead nodes: a pin that names one would be a mistake, and is refused."""
    return as_planned(draw(functions(form)))


@st.composite
def pins(draw: st.DrawFn, function: Function, engines: Sequence[GraphCompiler]) -> tuple[Pin, ...]:
    """Return a strategy for pins that put every node on some engine of the list."""
    homes: dict[str, list[str]] = {}
    for node in function.nodes:
        homes.setdefault(engines[draw(st.integers(0, len(engines) - 1))].spec, []).append(node.name)
    return tuple(Pin(tuple(names), spec, "name") for spec, names in homes.items())


def on_toy(function: Function, inputs: Sequence[Any]) -> list[Any]:
    """Run the whole function on toy."""
    return run_alone(registry.create(REFERENCE), function, inputs)


def outputs_of(results: Any, function: Function) -> list[Any]:
    """Return what a module returned as a list."""
    return [results] if len(function.outputs) == 1 else list(results)


def same_bits(results: Sequence[Any], function: Function, seed: int) -> Comparison:
    """Compare results with toy's own for the same inputs, to the last bit."""
    return compare_all(list(results), on_toy(function, make_random_inputs(function, seed)), BIT_EQUAL)
