"""Plant twenty wrong results, one at a time, and report how many of them `make test` finds.

    python -m tools.plant_faults [--only ort]

A fault is in one operator of one engine: its results are 1 % off, transposed, or one element late. It is planted in the graph
that the engine compiles, behind each node of that operator, where a wrong kernel or a wrong export would be. The
tests that run are those of `make test` that have the engine in their name, until one fails.
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
    """A wrong result of one operator on one engine."""

    engine: str
    operator: str
    kind: str
    """``off`` (by 1 %), ``transposed`` or ``late`` (by one element)."""

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
    """Return the function with the fault behind each node of its operator whose result has a fixed shape."""
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        type_ = function.get_type(node.outputs[0]) if node.op == fault.operator else None
        is_fit = isinstance(type_, TensorType) and type_.is_static
        if not is_fit or (type_.dtype is not DType.FLOAT32 if fault.kind == "off" else type_.dtype is DType.STRING):
            nodes.append(node)
            continue
        name = node.outputs[0]
        nodes.append(replace(node, outputs=(f"{name} right", *node.outputs[1:])))
        for part, values in _list_faulty_nodes(name, type_.shape or (), fault.kind):
            nodes.append(part)
            constants.update({key: Constant(value) for key, value in values.items()})
    return function.replace(nodes=tuple(nodes), constants=constants)


def _list_faulty_nodes(name: str, shape: Sequence[Any], kind: str) -> Iterator[tuple[Node, dict[str, np.ndarray[Any, Any]]]]:
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
    """A pytest plugin that lets the engine compile faulty graphs, and keeps the first test that fails."""

    fault: Fault
    failed: str = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        kind = registry.create(self.fault.engine).implementation
        compile_right = kind.compile

        def compile_wrong(engine: Any, function: Function, context: Any) -> Any:
            return compile_right(engine, plant(function, self.fault), context)

        kind.compile = compile_wrong  # type: ignore[method-assign]
        try:
            return (yield)
        finally:
            kind.compile = compile_right  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def find(fault: Fault) -> str:
    """Run the tests with the fault; return the first test that fails, or nothing."""
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
        test = find(fault)
        count += bool(test)
        print(f"{fault}: {test or 'NOT FOUND'} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(f"{count} of {len(faults)} found")
    return 0 if count == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
