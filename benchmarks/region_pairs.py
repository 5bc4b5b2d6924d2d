"""A part of regions.py: every pair of engines, and where each engine computes its result.

Five kinds of region: a chain of elementwise operators, Softmax, LayerNormalization, MatMul and Conv. (1) Four regions of a kind,
on two engines in turns: the module's call against the same regions called alone, added up, and against the same regions called
one after the other by hand, which has no part in what engines cost each other: threads to wake, data in other caches. (2) One
region of a kind: into new memory, into given memory, and over its input where the engine proposes that.
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
BOUNDARY = 20e-6
"""Seconds that a boundary between two regions may cost."""
TURN = 0.01
"""Seconds of a candidate's turn."""

Array = Any


def blocks(kind: str, count: int, size: int) -> Function:
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
        pairs = pairwise(names)
        return [
            Node(op, (a, second) if second else (a,), (b,), name=f"{prefix}{op}{i}")
            for i, ((op, second), (a, b)) in enumerate(zip(ops, pairs, strict=True))
        ]
    op, seconds, attributes = {
        "softmax": ("Softmax", (), {"axis": -1}),
        "layernorm": ("LayerNormalization", ("c", "d"), {"axis": -1}),
        "matmul": ("MatMul", ("c",), {}),
        "conv": ("Conv", ("c",), {"pads": [1, 1, 1, 1]}),
    }[kind]
    return [Node(op, (read, *seconds), (made,), read_attributes(attributes), name=f"{prefix}{op}")]


def single(engine: str, kind: str, size: int, threads: int) -> tuple[Executable, Array]:
    """Compile one region of a kind for an engine; return it and an input."""
    function = blocks(kind, 1, size)
    executable = registry.create(engine).compile(function, CompileContext(threads=threads))
    executable.prepare()
    type_ = function.inputs[0].type
    assert isinstance(type_, TensorType)
    return executable, np.random.default_rng(1).random(type_.shape, "float32")  # type: ignore[arg-type]  # it is static


# ---------------------------------------------------------------------- where the result goes


def memory_kinds(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield, per engine and kind, the time into new memory and the ratios of the other ways to it."""
    for engine in a.engines:
        for kind in a.kinds:
            executable, x = single(engine, kind, a.side, a.threads)
            calls = {"new": lambda executable=executable, x=x: executable.run([x])}
            calls |= dict(_bound(executable, x))
            times = interleave(calls, rounds=a.pair_rounds, budget=TURN)
            others = {name: compared(times[name], [times["new"]]) for name in calls if name != "new"}
            yield {"engine": engine, "kind": kind, "us": 1e6 * min(times["new"].seconds), **others}


def _bound(executable: Executable, x: Array) -> Iterator[tuple[str, Callable[[], None]]]:
    result = np.asarray(executable.run([x])[0])
    if executable.supports_io_binding():  # another's results are computed elsewhere and copied, which a plan avoids
        yield "given", executable.bind([x], [np.empty_like(result)])
    if (0, 0) in list(executable.inplace_pairs()):
        over = x.copy()
        yield "over", executable.bind([over], [over])


def compared(of: Timing, to: list[Timing], less: float = 0.0) -> dict[str, float]:
    """Return the median and quartiles of the ratio within rounds, and the ratio of the best times; ``less`` seconds are free.

    Other work of the machine only increases times, so the ratio of the best times varies less.
    """
    charged = Timing(tuple(max(seconds - less, 0.0) for seconds in of.seconds))
    return {**asdict(compute_ratio(charged, to)), "best": min(charged.seconds) / sum(min(t.seconds) for t in to)}


# ---------------------------------------------------------------------- pairs


def pairs(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield, per pair of engines and kind, the time in regions and its ratio to the regions alone and the boundaries."""
    alone = {(engine, kind): single(engine, kind, a.side, a.threads) for engine in a.engines for kind in a.kinds}
    for first, second in combinations(a.engines, 2):
        for kind in a.kinds:
            row = {"engines": [first, second], "kind": kind}
            try:
                module = alternating(first, second, kind, a)
            except XRTError as refusal:
                yield {**row, "why_not": str(refusal).splitlines()[0]}
                continue
            x = alone[first, kind][1]
            module(x)
            engines = [launch.engine.partition("{")[0] for launch in module.plan.launches]
            if engines != [first, second] * (REGIONS // 2):
                yield {**row, "why_not": f"the plan has regions on {', '.join(engines)}"}
                continue
            yield {**row, **_timed(module, x, [alone[engine, kind] for engine in (first, second)], a.pair_rounds)}


def alternating(first: str, second: str, kind: str, a: argparse.Namespace) -> xrt.XRTModule:
    """Create a module whose blocks of a kind alternate between two engines."""
    pins = [f"name:b{block}_*={(first, second)[block % 2]}" for block in range(REGIONS)]
    return xrt.XRTModule(blocks(kind, REGIONS, a.side), engine=[first, second], strict=True, pins=pins, threads=a.threads)


def _timed(module: xrt.XRTModule, x: Array, alone: list[tuple[Executable, Array]], rounds: int) -> dict[str, Any]:
    calls: dict[str, Callable[[], Any]] = {"mixture": lambda: module(x)}
    calls |= {f"alone {i}": lambda part=part: part[0].run([part[1]]) for i, part in enumerate(alone)}
    calls["by hand"] = lambda: _call_in_turn([part[0] for part in alone], x)
    times = interleave(calls, rounds=rounds, budget=TURN)
    parts = [times[f"alone {i % len(alone)}"] for i in range(REGIONS)]
    free = BOUNDARY * (REGIONS - 1)
    return {
        "us": 1e6 * min(times["mixture"].seconds),
        "to_parts": compared(times["mixture"], parts, free),
        "to_parts_in_turn": compared(times["mixture"], [times["by hand"]], free),
    }


def _call_in_turn(executables: Sequence[Executable], x: Array) -> Array:
    """Call the regions one after the other without XRT's runtime. The input of each is the result of the previous one."""
    for block in range(REGIONS):
        x = executables[block % len(executables)].run([x])[0]
    return x
