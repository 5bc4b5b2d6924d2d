"""How long does a call wait because its size is new?

A small transformer whose length is a symbolic dim gets calls of random lengths. Each engine serves them twice: as it is, where a
new length compiles while the caller waits, and with ``first="quickest"``, where a program for all sizes serves meanwhile. "auto"
has a budget for its search. The pause of a call is its time beyond that of the same length once everything is compiled, on the
same engine ("auto": on ort). Results are compared with those. The first call is left out: it must compile something.

    python benchmarks/sizes.py [--json] [--calls N] [--longest N] [--layers N] [--width N] [--engines ort,openvino,...,auto]
        [--budget SECONDS] [--threads N] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from time import perf_counter
from typing import Any

import numpy as np

import xrt
from xrt.bench import machine
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

ENGINES = ("toy", "ort", "openvino", "xla", "tvm", "auto")
HEADS = 4
LIMIT = 0.020
"""Seconds of a pause that nobody may notice."""


def transformer(layers: int, width: int) -> Function:
    """Return the layers of an encoder over ``s`` positions."""
    rng = np.random.default_rng(0)
    nodes: list[Node] = []
    constants = {
        "split": Constant(np.array([0, 0, HEADS, width // HEADS])),
        "join": Constant(np.array([0, 0, width])),
        "scale": Constant(np.float32((width // HEADS) ** -0.5)),
    }

    def weight(name: str, *shape: int) -> str:
        constants[name] = Constant((rng.standard_normal(shape) / np.sqrt(shape[0])).astype("float32"))
        return name

    def emit(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(nodes)}"
        nodes.append(Node(op, inputs, (name,), read_attributes(attributes), name=name))
        return name

    def norm(x: str, name: str) -> str:
        return emit("LayerNormalization", x, weight(f"{name}_scale", width), weight(f"{name}_shift", width), axis=-1)

    def heads(x: str, name: str, perm: tuple[int, ...]) -> str:
        return emit("Transpose", emit("Reshape", emit("MatMul", x, weight(name, width, width)), "split"), perm=perm)

    x = "x"
    for layer in range(layers):
        h = norm(x, f"norm_a{layer}")
        q, v = (heads(h, f"{name}{layer}", (0, 2, 1, 3)) for name in "qv")
        scores = emit("Mul", emit("MatMul", q, heads(h, f"k{layer}", (0, 2, 3, 1))), "scale")
        mixed = emit("MatMul", emit("Softmax", scores, axis=-1), v)
        joined = emit("Reshape", emit("Transpose", mixed, perm=(0, 2, 1, 3)), "join")
        x = emit("Add", x, emit("MatMul", joined, weight(f"o{layer}", width, width)))
        inner = emit("Relu", emit("MatMul", norm(x, f"norm_b{layer}"), weight(f"up{layer}", width, 4 * width)))
        x = emit("Add", x, emit("MatMul", inner, weight(f"down{layer}", 4 * width, width)))
    type_ = TensorType(DType.FLOAT32, (1, "s", width))
    return Function((Value("x", type_),), (Value(x, type_),), tuple(nodes), constants, {"": 17}, name="transformer")


def measure(engine: str, first: str, lengths: list[int], asked: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Return the pauses of the calls, and how far the results are from those of exact programs."""
    model = transformer(asked.layers, asked.width)
    options: dict[str, Any] = {"threads": asked.threads, "cache": f"{folder}/{engine}-{first}", "progress": False}
    if engine == "auto":
        options["budget"] = asked.budget
    rng = np.random.default_rng(asked.seed)
    inputs = {n: rng.standard_normal((1, n, asked.width)).astype("float32") for n in dict.fromkeys(lengths)}
    times, results = [], []
    with xrt.XRTModule(model, engine, first=first, **options) as module:
        for length in lengths:
            began = perf_counter()
            results.append(module(inputs[length]))
            times.append(perf_counter() - began)
        served = module._tiers.calls if module._tiers else 0
        module.settle()
    exact: dict[int, tuple[float, Any]] = {}
    with xrt.XRTModule(model, "ort" if engine == "auto" else engine, threads=asked.threads, first="wanted") as module:
        for length, values in inputs.items():
            module(values)
            exact[length] = time_call(module, values)
    pauses = [1e3 * (seconds - exact[length][0]) for seconds, length in zip(times, lengths, strict=True)][1:]
    pairs = [(result, exact[length][1]) for result, length in zip(results, lengths, strict=True)]
    return {
        "engine": engine,
        "first": first,
        "first_call_ms": 1e3 * times[0],
        "longest_pause_ms": max(pauses),
        "median_pause_ms": float(np.median(pauses)),
        "above_limit": sum(pause > 1e3 * LIMIT for pause in pauses),
        "served_by_the_first_tier": served,
        "largest_difference": float(max(np.abs(result - other).max() / np.abs(other).max() for result, other in pairs)),
    }


def time_call(module: xrt.XRTModule, values: Any) -> tuple[float, Any]:
    """Return the median seconds of five calls, and the result."""
    times = []
    for _ in range(5):
        began = perf_counter()
        result = module(values)
        times.append(perf_counter() - began)
    return float(np.median(times)), result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    lengths = np.random.default_rng(asked.seed).integers(1, asked.longest + 1, asked.calls).tolist()
    with tempfile.TemporaryDirectory() as folder:
        found = [
            measure(engine, first, lengths, asked, folder)
            for engine in asked.engines.split(",")
            for first in ("wanted", "quickest")
        ]
    if asked.json:
        facts = {"machine": machine(), "load": os.getloadavg()[0], "sizes": len(set(lengths)), "results": found}
        print(json.dumps(facts, indent=1))
        return
    print(f"{asked.calls} calls of {len(set(lengths))} lengths up to {asked.longest}; load {os.getloadavg()[0]:.1f}")
    columns = f"{'first call':>10}{'longest':>10}{'median':>10} {'>20 ms':>6} {'tier 1':>6} {'difference':>10}"
    print(f"{'engine':10} {'first':9} {columns}")
    for one in found:
        ms = "".join(f" {one[name]:9.1f}" for name in ("first_call_ms", "longest_pause_ms", "median_pause_ms"))
        rest = f"{one['above_limit']:6d} {one['served_by_the_first_tier']:6d} {one['largest_difference']:10.1e}"
        print(f"{one['engine']:10} {one['first']:9} {ms} {rest}")


if __name__ == "__main__":
    main()
