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
from time import perf_counter
from typing import Any

import numpy as np
from output import print_figures

import xrt
from xrt.bench import machine
from xrt.cache import CompileCache
from xrt.errors import OptionError, PlanError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.measure.statistics import compute_round_ratio

ENGINES = ("ort", "openvino", "tvm", "iree")
NEW = 3
"""Number of new sizes, of each of which the first call is measured."""


def chain() -> Function:
    """Return 24 operators of one element at a time, on rows of 1024."""
    ops = ("Tanh", "Relu", "Sigmoid", "Abs", "Exp", "Neg") * 4
    names = ["x", *(f"v{place}" for place in range(len(ops)))]
    nodes = tuple(Node(op, (names[i],), (names[i + 1],)) for i, op in enumerate(ops))
    type_ = TensorType(DType.FLOAT32, ("s", 1024))
    return Function((Value("x", type_),), (Value(names[-1], type_),), nodes, opsets={"": 17}, name="chain")


def perceptron() -> Function:
    """Return four dense layers of width 512 for a batch of any size."""
    rng = np.random.default_rng(0)
    constants = {f"w{i}": Constant((rng.standard_normal((512, 512)) / 23).astype("float32")) for i in range(4)}
    nodes, x = [], "x"
    for i in range(4):
        nodes += [Node("MatMul", (x, f"w{i}"), (f"m{i}",)), Node("Relu", (f"m{i}",), (f"r{i}",))]
        x = f"r{i}"
    type_ = TensorType(DType.FLOAT32, ("s", 512))
    return Function((Value("x", type_),), (Value(x, type_),), tuple(nodes), constants, {"": 17}, name="perceptron")


def convolutions() -> Function:
    """Return four convolutions of 32 channels for a batch of any size."""
    rng = np.random.default_rng(0)
    constants = {f"w{i}": Constant((rng.standard_normal((32, 32, 3, 3)) * 0.06).astype("float32")) for i in range(4)}
    pads, nodes, x = read_attributes({"pads": [1, 1, 1, 1]}), [], "x"
    for i in range(4):
        nodes += [Node("Conv", (x, f"w{i}"), (f"c{i}",), pads), Node("Relu", (f"c{i}",), (f"r{i}",))]
        x = f"r{i}"
    type_ = TensorType(DType.FLOAT32, ("s", 32, 28, 28))
    return Function((Value("x", type_),), (Value(x, type_),), tuple(nodes), constants, {"": 17}, name="convolutions")


def transformer(layers: int = 4, width: int = 128, heads: int = 4) -> Function:
    """Return layers of an encoder over a sequence of any length."""
    rng, nodes, constants = np.random.default_rng(0), list[Node](), dict[str, Constant]()

    def emit(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(Node(op, inputs, (f"v{len(nodes)}",), read_attributes(attributes)))
        return nodes[-1].outputs[0]

    def constant(array: Any) -> str:
        constants[name := f"c{len(constants)}"] = Constant(np.asarray(array))
        return name

    def linear(x: str, rows: int, columns: int) -> str:
        return emit("MatMul", x, constant((rng.standard_normal((rows, columns)) / rows**0.5).astype("float32")))

    def norm(x: str) -> str:
        return emit("LayerNormalization", x, constant(np.ones(width, "float32")), constant(np.zeros(width, "float32")), axis=-1)

    def split(x: str, perm: list[int]) -> str:
        places = constant(np.array([0, 0, heads, width // heads]))
        return emit("Transpose", emit("Reshape", linear(x, width, width), places), perm=perm)

    x = "x"
    for _ in range(layers):
        h = norm(x)
        scores = emit("MatMul", split(h, [0, 2, 1, 3]), split(h, [0, 2, 3, 1]))
        scores = emit("Mul", scores, constant(np.float32((width // heads) ** -0.5)))
        mixed = emit("MatMul", emit("Softmax", scores, axis=-1), split(h, [0, 2, 1, 3]))
        joined = emit("Reshape", emit("Transpose", mixed, perm=[0, 2, 1, 3]), constant(np.array([0, 0, width])))
        x = emit("Add", x, linear(joined, width, width))
        x = emit("Add", x, linear(emit("Gelu", linear(norm(x), width, 4 * width)), 4 * width, width))
    type_ = TensorType(DType.FLOAT32, (1, "s", width))
    return Function((Value("x", type_),), (Value(x, type_),), tuple(nodes), constants, {"": 20}, name="transformer")


MODELS: dict[str, Callable[[], Function]] = {
    "chain": chain,
    "perceptron": perceptron,
    "convolutions": convolutions,
    "transformer": transformer,
}


def make_input(function: Function, size: int) -> Any:
    """Return random numbers for the model's input at a size of its symbolic dim."""
    (value,) = function.inputs
    shape = [dim if isinstance(dim, int) else size for dim in value.type.shape]  # type: ignore[union-attr]  # a tensor
    return np.random.default_rng(size).standard_normal(shape).astype("float32")


def measure(engine: str, name: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return what both policies take, None where the engine does not take the model with symbolic dims."""
    function, sizes = MODELS[name](), [int(size) for size in arguments.sizes.split(",")]
    policies: list[Any] = ["one", "each"]
    options: dict[str, Any] = {"threads": arguments.threads, "strict": True, "progress": False}
    try:
        modules = [xrt.XRTModule(function, engine, shapes=policy, cache=CompileCache(), **options) for policy in policies]
        modules[0](make_input(function, max(sizes)))
    except (OptionError, PlanError) as error:
        print(f"{engine} {name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    inputs = {size: make_input(function, size) for size in sizes}
    rows = []
    for size, x in inputs.items():
        results = [module(x) for module in modules]
        difference = float(np.abs(results[0] - results[1]).max() / np.abs(results[1]).max())
        times: list[list[float]] = [[], []]
        for turn in range(arguments.rounds):
            for place in (0, 1) if turn % 2 else (1, 0):
                began = perf_counter()
                modules[place](x)
                times[place].append(perf_counter() - began)
        ratio = compute_round_ratio(*times)
        row = {"size": size, "ratio": ratio.median, "low": ratio.low, "high": ratio.high, "difference": difference}
        rows.append({**row, "ms": 1e3 * float(np.median(times[1]))})
    firsts: list[list[float]] = [[], []]
    for size in range(max(sizes) + 1, max(sizes) + 1 + NEW):
        x = make_input(function, size)
        for place, module in enumerate(modules):
            began = perf_counter()
            module(x)
            firsts[place].append(1e3 * (perf_counter() - began))
    first = {f"first_call_{policy}_ms": float(np.median(times)) for policy, times in zip(policies, firsts, strict=True)}
    for module in modules:
        module.close()
    return {"engine": engine, "model": name, "sizes": rows, **first}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
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
