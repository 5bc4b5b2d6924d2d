"""Plant twenty faults, one at a time, and report how many of them `make test` finds.

    python -m tools.plant_faults [--only ort]

A fault makes the results of one operator of one engine wrong: 1 % too large, transposed, or shifted by one element. It is planted
in the Function that the engine compiles, after each node of the operator, and so acts like a wrong kernel or export. Of the tests
of `make test`, those of the engine are run until one fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xrt.engines.contract import registry
from xrt.graph import Constant, DType, Function, Node, TensorType

TOP = Path(__file__).parents[1]
TESTS = ("tests/conformance", "tests/engines/test_{engine}.py")


@dataclass(frozen=True)
class Fault:
    """A fault of one operator on one engine."""

    engine: str
    operator: str
    kind: str
    """How the results are wrong: ``off`` (1 % too large), ``transposed``, or ``late`` (shifted by one element)."""

    def __str__(self) -> str:
        return f"{self.engine} {self.operator} {self.kind}"


FAULTS = tuple(
    Fault(*line.split())
    for line in (
        *("toy Softmax off", "toy MatMul transposed", "toy Conv late", "toy CumSum late"),
        *("ort Gemm transposed", "ort Resize late", "ort LayerNormalization off", "ort ReduceMean late"),
        *("torch ConvTranspose off", "torch Einsum transposed", "torch GatherND late"),
        *("openvino MaxPool off", "openvino Transpose transposed", "openvino Concat late"),
        *("xla Erf off", "xla Sub transposed", "tvm Sigmoid off", "tvm AveragePool late"),
        *("iree MatMul off", "iree Pad late"),
    )
)


def plant(function: Function, fault: Fault) -> Function:
    """Plant a fault after each node of its operator whose result has a static shape."""
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        type_ = function.get_type(node.outputs[0]) if node.op == fault.operator else None
        if not isinstance(type_, TensorType) or not type_.is_static:
            nodes.append(node)
            continue
        is_supported = type_.dtype is DType.FLOAT32 if fault.kind == "off" else type_.dtype is not DType.STRING
        if not is_supported:
            nodes.append(node)
            continue
        name = node.outputs[0]
        nodes.append(replace(node, outputs=(f"{name} right", *node.outputs[1:])))
        for faulty_node, arrays in _list_faulty_nodes(name, type_.shape or (), fault.kind):
            nodes.append(faulty_node)
            constants.update({key: Constant(array) for key, array in arrays.items()})
    return function.replace(nodes=tuple(nodes), constants=constants)


def _list_faulty_nodes(name: str, shape: Sequence[Any], kind: str) -> Iterator[tuple[Node, dict[str, np.ndarray[Any, Any]]]]:
    """Yield the nodes that compute the wrong value ``name`` from the right value, with the constants that each node reads."""
    if kind == "off":
        yield Node("Mul", (f"{name} right", f"{name} factor"), (name,)), {f"{name} factor": np.float32([1.01]).reshape(())}
        return
    numbers = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    order = numbers.T.reshape(-1) if kind == "transposed" else np.roll(numbers.reshape(-1), 1)
    yield Node("Reshape", (f"{name} right", f"{name} flat"), (f"{name} line",)), {f"{name} flat": np.array([-1])}
    yield Node("Gather", (f"{name} line", f"{name} order"), (f"{name} turned",)), {f"{name} order": order}
    yield Node("Reshape", (f"{name} turned", f"{name} shape"), (name,)), {f"{name} shape": np.array(shape, np.int64)}


@dataclass
class Planter:
    """A pytest plugin that plants a fault in what the engine compiles, and records the first test that fails."""

    fault: Fault
    failed: str = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        engine_class = registry.create(self.fault.engine).implementation
        original_compile = engine_class.compile

        def compile_faulty(engine: Any, function: Function, context: Any) -> Any:
            return original_compile(engine, plant(function, self.fault), context)

        engine_class.compile = compile_faulty  # type: ignore[method-assign]
        try:
            return (yield)
        finally:
            engine_class.compile = original_compile  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def find_failing_test(fault: Fault) -> str:
    """Run the tests with the fault; return the first test that fails, or an empty string."""
    planter = Planter(fault)
    names = [str(TOP / name.format(engine=fault.engine)) for name in TESTS]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--engine", fault.engine, *names], plugins=[planter])
    if not planter.failed and code != 0:
        raise SystemExit(f"pytest ended with code {code}:\n{output.getvalue()[-2000:]}")
    return planter.failed


def main() -> int:
    """Plant each fault and report."""
    parser = argparse.ArgumentParser(description="Plant wrong results, and report how many of them make test finds.")
    parser.add_argument("--only", help="plant the faults of one engine")
    only = parser.parse_args().only
    faults = [fault for fault in FAULTS if only in (None, fault.engine)]
    count = 0
    for fault in faults:
        start = time.perf_counter()
        test = find_failing_test(fault)
        count += bool(test)
        print(f"{fault}: {test or 'NOT FOUND'} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(f"{count} of {len(faults)} found")
    return 0 if count == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
