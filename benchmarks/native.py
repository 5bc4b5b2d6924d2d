"""What do native kernels gain, over NumPy and beside ONNX Runtime?

Each model runs as a module on native ``toy``, on NumPy's ``toy`` and on ``ort``, with the same threads, in turns: a chain
of 50 cheap elementwise operators on 1024x1024 (target: at least 8 x NumPy's, and ahead of ``ort``), softmax, layer
normalisation, a sum of columns, a transpose, a depthwise convolution, and a MobileNet, whose other convolutions are
NumPy's matrix products in either case.

    python benchmarks/native.py [--json] [--rounds N] [--small] [--models NAME,...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

import xrt
from xrt.bench import RatioInterval, interleave, machine, ratio
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.models import load, sample_inputs

ENGINES = ("toy{native=on}", "toy{native=off}", "ort")
CHEAP = ("Add", "Mul", "Sub", "Max", "Min")
LENGTH = 50


def single(
    op: str, shape: tuple[int, ...], constants: dict[str, Any] | None = None, *, opset: int = 17, **attributes: Any
) -> Function:
    """Return a Function of one operator over one float32 tensor."""
    held = {name: Constant(np.asarray(array)) for name, array in (constants or {}).items()}
    node = Node(op, ("x", *held), ("y",), read_attributes(attributes))
    return Function((Value("x", TensorType(DType.FLOAT32, shape)),), (Value("y"),), (node,), held, {"": opset}, name=op.lower())


def chain(size: int) -> Function:
    """Return 50 cheap operators, each with a number of its own, on a square."""
    rng = np.random.default_rng(0)
    type_ = TensorType(DType.FLOAT32, (size, size))
    constants = {f"c{i}": Constant(rng.uniform(0.5, 1.5, ()).astype(np.float32)) for i in range(LENGTH)}
    nodes = tuple(Node(CHEAP[i % len(CHEAP)], (f"v{i}", f"c{i}"), (f"v{i + 1}",)) for i in range(LENGTH))
    return Function((Value("v0", type_),), (Value(f"v{LENGTH}", type_),), nodes, constants, {"": 17}, name="chain")


def curves(size: int) -> Function:
    """Return a Gelu written out and a sigmoid gate: exponentials and error functions among cheap operators."""
    type_ = TensorType(DType.FLOAT32, (size, size))
    numbers = {"half": 0.5, "one": 1.0, "slope": 0.5**0.5}
    constants = {name: Constant(np.array(value, np.float32)) for name, value in numbers.items()}
    nodes = (
        Node("Mul", ("x", "slope"), ("a",)),
        Node("Erf", ("a",), ("b",)),
        Node("Add", ("b", "one"), ("c",)),
        Node("Mul", ("x", "c"), ("d",)),
        Node("Mul", ("d", "half"), ("e",)),
        Node("Sigmoid", ("e",), ("f",)),
        Node("Mul", ("e", "f"), ("g",)),
        Node("Tanh", ("g",), ("y",)),
    )
    return Function((Value("x", type_),), (Value("y", type_),), nodes, constants, {"": 17}, name="curves")


def layer_normalization(rows: int, columns: int) -> Function:
    ones = np.ones(columns, np.float32)
    return single("LayerNormalization", (rows, columns), {"scale": ones, "bias": ones})


def depthwise(channels: int, size: int) -> Function:
    weights = np.random.default_rng(0).standard_normal((channels, 1, 3, 3)).astype(np.float32)
    return single("Conv", (1, channels, size, size), {"w": weights}, group=channels, pads=[1, 1, 1, 1])


def models(small: bool) -> dict[str, Callable[[], Function]]:
    """Return how to make each model; small ones show that the benchmark runs, not how quick anything is."""
    size, rows, channels, image = (64, 32, 4, 32) if small else (1024, 4096, 96, 224)
    axes = {"axes": np.array([0], np.int64)}
    return {
        "chain": partial(chain, size),
        "curves": partial(curves, size),
        "softmax": partial(single, "Softmax", (rows, size)),
        "layer norm": partial(layer_normalization, rows, size),
        "column sums": partial(single, "ReduceSum", (rows, size), axes),
        "transpose": partial(single, "Transpose", (rows, size), perm=[1, 0]),
        "max pool": partial(single, "MaxPool", (1, channels, image // 2, image // 2), kernel_shape=[3, 3], strides=[2, 2]),
        "depthwise": partial(depthwise, channels, image // 2),
        "mobilenet": partial(load, "mobilenet", image=image, width=25 if small else 100),
    }


def measured(name: str, function: Function, rounds: int) -> dict[str, Any]:
    """Time a model on the three engines in turn, and check that they agree."""
    inputs = sample_inputs(function)
    modules = {engine: xrt.XRTModule(function, engine=engine, strict=True) for engine in ENGINES}
    results = [np.asarray(module(**inputs)) for module in modules.values()]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-3, atol=1e-3)
    times = interleave({engine: partial(module, **inputs) for engine, module in modules.items()}, rounds=rounds)
    native = times[ENGINES[0]]
    return {
        "model": name,
        "ms": {engine: 1e3 * timing.median for engine, timing in times.items()},
        "numpy_over_native": asdict(ratio(times[ENGINES[1]], [native])),
        "ort_over_native": asdict(ratio(times[ENGINES[2]], [native])),
    }


def report(figures: dict[str, Any]) -> str:
    lines = [figures["machine"], "", "            native ms   NumPy ms     ort ms   NumPy / native              ort / native"]
    for row in figures["models"]:
        native, numpy, ort = (row["ms"][engine] for engine in ENGINES)
        gains = (str(RatioInterval(**row[key])) for key in ("numpy_over_native", "ort_over_native"))
        lines.append("{:11} {:9.3f}  {:9.3f}  {:9.3f}   {:26}  {}".format(row["model"], native, numpy, ort, *gains))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default 20)")
    parser.add_argument("--small", action="store_true", help="small models: shows that it runs")
    parser.add_argument("--models", default="", help="which models (default all)")
    arguments = parser.parse_args()
    made = models(arguments.small)
    chosen = arguments.models.split(",") if arguments.models else list(made)
    figures = {
        "machine": machine("onnxruntime"),
        "models": [measured(name, made[name](), arguments.rounds) for name in chosen],
    }
    print(json.dumps(figures, indent=2) if arguments.json else report(figures))


if __name__ == "__main__":
    main()
