"""A part of regions.py: every pair of engines, and where each engine computes its result.

Five kinds of region: a chain of elementwise operators, Softmax, LayerNormalization, MatMul and Conv.

1. Four regions of a kind that alternate between two engines: the module's call against the sum of the same regions called alone,
   and against the same regions called one after the other by hand. The second ratio excludes what engines cost each other, such
   as threads to wake and data in other caches.
2. One region of a kind: its result in new memory, in the caller's memory, and over its input if the engine proposes that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import combinations, pairwise
from typing import Any

import numpy as np

import xrt
from xrt.bench import Timing, compute_ratio, interleave
from xrt.engines import CompileContext, Executable
from xrt.engines.contract import registry
from xrt.errors import XRTError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

ENGINES = ("ort", "openvino", "xla", "tvm", "iree", "toy")
KINDS = ("chain", "softmax", "layernorm", "matmul", "conv")
REGIONS = 4
BOUNDARY_SECONDS = 20e-6
"""Seconds that a boundary between two regions may cost."""
TURN_SECONDS = 0.01
"""Seconds of a candidate's turn."""

Array = Any


def make_blocks(kind: str, count: int, size: int) -> Function:
    """Create a Function of ``count`` blocks of a kind. Nodes and values are named by block: ``b0_...``, ``b1_...``."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Constant:
        return Constant((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32"))

    shape = (1, 32, max(size // 8, 4), max(size // 8, 4)) if kind == "conv" else (size, size)
    constants = {
        "chain": {"c": Constant(np.array(0.75, "float32")), "d": weight(size)},
        "softmax": {},
        "layernorm": {"c": weight(size), "d": weight(size)},
        "matmul": {"c": weight(size, size)},
        "conv": {"c": weight(32, 32, 3, 3)},
    }[kind]
    nodes = [node for block in range(count) for node in _nodes(kind, f"b{block}_", f"v{block}", f"v{block + 1}")]
    type_ = TensorType(DType.FLOAT32, shape)
    ends = (Value("v0", type_),), (Value(f"v{count}", type_),)
    types = {name: type_ for node in nodes for name in node.outputs if name != f"v{count}"}
    return Function(*ends, tuple(nodes), constants, {"": 17}, types=types, name=kind)


def _nodes(kind: str, prefix: str, read: str, made: str) -> list[Node]:
    if kind == "chain":
        ops = [("Mul", "c"), ("Add", "d"), ("Relu", ""), ("Sub", "c"), ("Abs", ""), ("Add", "d"), ("Sqrt", ""), ("Mul", "d")]
        names = [read, *(f"{prefix}{i}" for i in range(len(ops) - 1)), made]
        return [
            Node(op, (source, constant) if constant else (source,), (result,), name=f"{prefix}{op}{i}")
            for i, ((op, constant), (source, result)) in enumerate(zip(ops, pairwise(names), strict=True))
        ]
    op, seconds, attributes = {
        "softmax": ("Softmax", (), {"axis": -1}),
        "layernorm": ("LayerNormalization", ("c", "d"), {"axis": -1}),
        "matmul": ("MatMul", ("c",), {}),
        "conv": ("Conv", ("c",), {"pads": [1, 1, 1, 1]}),
    }[kind]
    return [Node(op, (read, *seconds), (made,), read_attributes(attributes), name=f"{prefix}{op}")]


def compile_region(engine: str, kind: str, size: int, threads: int) -> tuple[Executable, Array]:
    """Compile one region of a kind for an engine; return it and an input."""
    function = make_blocks(kind, 1, size)
    executable = registry.create(engine).compile(function, CompileContext(threads=threads))
    executable.prepare()
    type_ = function.inputs[0].type
    assert isinstance(type_, TensorType)
    return executable, np.random.default_rng(1).random(type_.shape, "float32")  # type: ignore[arg-type]  # it is static


# ---------------------------------------------------------------------- where the result goes


def measure_memory_kinds(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield, per engine and kind, the time into new memory and the ratios of the other ways to it."""
    for engine in options.engines:
        for kind in options.kinds:
            executable, x = compile_region(engine, kind, options.side, options.threads)
            calls = {"new": lambda executable=executable, x=x: executable.run([x])}
            calls |= dict(_bound(executable, x))
            times = interleave(calls, rounds=options.pair_rounds, budget=TURN_SECONDS)
            others = {name: compute_charged_ratio(times[name], [times["new"]]) for name in calls if name != "new"}
            yield {"engine": engine, "kind": kind, "us": 1e6 * min(times["new"].seconds), **others}


def _bound(executable: Executable, x: Array) -> Iterator[tuple[str, Callable[[], None]]]:
    result = np.asarray(executable.run([x])[0])
    if executable.supports_io_binding():  # another's results are computed elsewhere and copied, which a plan avoids
        yield "given", executable.bind([x], [np.empty_like(result)])
    if (0, 0) in list(executable.inplace_pairs()):
        over = x.copy()
        yield "over", executable.bind([over], [over])


def compute_charged_ratio(of: Timing, to: list[Timing], less: float = 0.0) -> dict[str, float]:
    """Compute the ratio after ``less`` seconds are subtracted: median and quartiles over rounds, and the ratio of the best times.

    Other work of the machine only increases times, so the ratio of the best times varies less.
    """
    charged = Timing(tuple(max(seconds - less, 0.0) for seconds in of.seconds))
    return {**asdict(compute_ratio(charged, to)), "best": min(charged.seconds) / sum(min(t.seconds) for t in to)}


# ---------------------------------------------------------------------- pairs


def measure_pairs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield, per pair of engines and kind, the time in regions and its ratio to the regions alone and the boundaries."""
    alone = {
        (engine, kind): compile_region(engine, kind, options.side, options.threads)
        for engine in options.engines
        for kind in options.kinds
    }
    for first, second in combinations(options.engines, 2):
        for kind in options.kinds:
            row = {"engines": [first, second], "kind": kind}
            try:
                module = make_alternating(first, second, kind, options)
            except XRTError as refusal:
                yield {**row, "why_not": str(refusal).splitlines()[0]}
                continue
            x = alone[first, kind][1]
            module(x)
            engines = [launch.engine.partition("{")[0] for launch in module.plan.launches]
            if engines != [first, second] * (REGIONS // 2):
                yield {**row, "why_not": f"the plan has regions on {', '.join(engines)}"}
                continue
            yield {**row, **_timed(module, x, [alone[engine, kind] for engine in (first, second)], options.pair_rounds)}


def make_alternating(first: str, second: str, kind: str, options: argparse.Namespace) -> xrt.XRTModule:
    """Create a module whose blocks of a kind alternate between two engines."""
    pins = [f"name:b{block}_*={(first, second)[block % 2]}" for block in range(REGIONS)]
    return xrt.XRTModule(
        make_blocks(kind, REGIONS, options.side), engine=[first, second], strict=True, pins=pins, threads=options.threads
    )


def _timed(module: xrt.XRTModule, x: Array, alone: list[tuple[Executable, Array]], rounds: int) -> dict[str, Any]:
    calls: dict[str, Callable[[], Any]] = {"mixture": lambda: module(x)}
    calls |= {f"alone {i}": lambda part=part: part[0].run([part[1]]) for i, part in enumerate(alone)}
    calls["by hand"] = lambda: _call_in_turn([part[0] for part in alone], x)
    times = interleave(calls, rounds=rounds, budget=TURN_SECONDS)
    parts = [times[f"alone {i % len(alone)}"] for i in range(REGIONS)]
    free = BOUNDARY_SECONDS * (REGIONS - 1)
    return {
        "us": 1e6 * min(times["mixture"].seconds),
        "to_parts": compute_charged_ratio(times["mixture"], parts, free),
        "to_parts_in_turn": compute_charged_ratio(times["mixture"], [times["by hand"]], free),
    }


def _call_in_turn(executables: Sequence[Executable], x: Array) -> Array:
    """Call the regions one after the other without XRT's runtime. The input of each is the result of the previous one."""
    for block in range(REGIONS):
        x = executables[block % len(executables)].run([x])[0]
    return x
