"""What does one program for all sizes cost against a program for each size?

Each model runs as two modules of one engine: ``shapes="one"``, one program for all sizes, and ``shapes="each"``, one program
per size. (1) The ratio of their calls at sizes that both have compiled, in turns: above 1, the program for all sizes is slower.
(2) The first call of a new size. Results are compared. Engines that decline a node with symbolic dims are skipped for that model.

    python benchmarks/dynamic_shapes.py [--json] [--engines ort,openvino,iree,...] [--models chain,...] [--sizes 4,16,64]
        [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from output import make_parser, print_figures

import xrt
from xrt import ops
from xrt.bench import machine
from xrt.builder import trace
from xrt.cache import CompileCache
from xrt.errors import OptionError, PlanError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import DType, Function, TensorType
from xrt.measure.statistics import compute_round_ratio, take_turns
from xrt.measure.timing import measure_call

ENGINES = ("ort", "openvino", "tvm", "iree")
POLICIES = ("one", "each")
"""Values of the option ``shapes``: one program for all sizes, or a program for each size."""
NEW_SIZES = 3
"""Number of sizes that no call has used before; the first call of each is measured."""

RNG = np.random.default_rng(0)


def make_weights(*shape: int) -> Any:
    """Return random weights whose products keep the size of activations."""
    return (RNG.standard_normal(shape) / np.prod(shape[1:] if len(shape) == 4 else shape[0]) ** 0.5).astype("float32")


def chain(x: Any) -> Any:
    """Compute 24 operators of one element at a time."""
    for operator in (ops.Tanh, ops.Relu, ops.Sigmoid, ops.Abs, ops.Exp, ops.Neg) * 4:
        x = operator(x)
    return x


def perceptron(x: Any) -> Any:
    for _ in range(4):
        x = ops.Relu(x @ make_weights(512, 512))
    return x


def convolutions(x: Any) -> Any:
    for _ in range(4):
        x = ops.Relu(ops.Conv(x, make_weights(32, 32, 3, 3), pads=[1, 1, 1, 1]))
    return x


def transformer(x: Any, layers: int = 4, width: int = 128, heads: int = 4) -> Any:
    """Compute layers of an encoder over a sequence of any length."""

    def norm(x: Any) -> Any:
        return ops.LayerNormalization(x, np.ones(width, "float32"), np.zeros(width, "float32"), axis=-1)

    def split(x: Any, perm: list[int]) -> Any:
        return ops.Transpose(ops.Reshape(x @ make_weights(width, width), np.array([0, 0, heads, width // heads])), perm=perm)

    for _ in range(layers):
        h = norm(x)
        scores = split(h, [0, 2, 1, 3]) @ split(h, [0, 2, 3, 1]) * (width // heads) ** -0.5
        mixed = ops.Softmax(scores, axis=-1) @ split(h, [0, 2, 1, 3])
        joined = ops.Reshape(ops.Transpose(mixed, perm=[0, 2, 1, 3]), np.array([0, 0, width]))
        x = x + joined @ make_weights(width, width)
        x = x + ops.Gelu(norm(x) @ make_weights(width, 4 * width)) @ make_weights(4 * width, width)
    return x


MODELS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "chain": (chain, ("s", 1024)),
    "perceptron": (perceptron, ("s", 512)),
    "convolutions": (convolutions, ("s", 32, 28, 28)),
    "transformer": (transformer, (1, "s", 128)),
}
"""What each computes, and the shape of its input."""


def make_input(function: Function, size: int) -> Any:
    """Return random numbers for the model's input at a size of its symbolic dim."""
    (value,) = function.inputs
    shape = [dim if isinstance(dim, int) else size for dim in value.type.shape]  # type: ignore[union-attr]  # a tensor
    return np.random.default_rng(size).standard_normal(shape).astype("float32")


def measure(engine: str, name: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Measure both policies; return None if the engine does not support the model with symbolic dims."""
    build, shape = MODELS[name]
    function = trace(build, TensorType(DType.FLOAT32, shape), opsets=20, name=name, inference=infer_node_types)
    sizes = [int(size) for size in arguments.sizes.split(",")]
    options: dict[str, Any] = {"threads": arguments.threads, "strict": True, "progress": False}
    try:
        modules = {
            policy: xrt.XRTModule(function, engine, shapes=policy, cache=CompileCache(), **options)  # type: ignore[arg-type]
            for policy in POLICIES
        }
        modules["one"](make_input(function, max(sizes)))
    except (OptionError, PlanError) as error:
        print(f"{engine} {name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    rows = []
    for size in sizes:
        x = make_input(function, size)
        actual, expected = modules["one"](x), modules["each"](x)
        difference = float(np.abs(actual - expected).max() / np.abs(expected).max())
        times = take_turns({policy: partial(measure_call, partial(modules[policy], x)) for policy in POLICIES}, arguments.rounds)
        ratio = compute_round_ratio(times["one"], times["each"])
        row = {"size": size, "ratio": ratio.median, "low": ratio.low, "high": ratio.high, "difference": difference}
        rows.append({**row, "ms": 1e3 * float(np.median(times["each"]))})
    new_inputs = [make_input(function, size) for size in range(max(sizes) + 1, max(sizes) + 1 + NEW_SIZES)]
    first_calls = {}
    for policy, module in modules.items():
        seconds = [measure_call(partial(module, x)) for x in new_inputs]
        first_calls[f"first_call_{policy}_ms"] = 1e3 * float(np.median(seconds))
        module.close()
    return {"engine": engine, "model": name, "sizes": rows, **first_calls}


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--sizes", default="4,16,64")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    pairs = [(engine, name) for engine in arguments.engines.split(",") for name in arguments.models.split(",")]
    rows = [row for engine, name in pairs if (row := measure(engine, name, arguments)) is not None]
    print_figures("dynamic_shapes", {"machine": machine(), "results": rows}, as_json=arguments.json)


if __name__ == "__main__":
    main()
