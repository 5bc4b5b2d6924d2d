"""Many generated graphs as one Function, so that an engine is asked, compiles and runs once for all of them.

The graphs share nothing. What fails, or differs, in such a batch is tried again by itself: a batch proves results, no defects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt import passes
from xrt.engines import CompileContext, GraphCompiler
from xrt.graph import Function, Node
from xrt.runtime import adapt_to_host, available_cores
from xrt.testing.renaming import rename_values
from xrt.verify import Verdict
from xrt.verify.execution import fit_inputs

if TYPE_CHECKING:
    from xrt.testing.shrink import Sample

__all__ = ["merge", "settle_batch"]

Judge: TypeAlias = Callable[[int, Sequence[Any]], Verdict]
"""Judges the results of the graph of that index."""


def merge(functions: Sequence[Function]) -> Function:
    """Return one Function with the inputs, nodes and outputs of all, in their order; each has a prefix for its names."""
    parts = [_prefixed(function.replace(aliases=()), f"g{index}_") for index, function in enumerate(functions)]
    return Function(
        inputs=tuple(value for part in parts for value in part.inputs),
        outputs=tuple(value for part in parts for value in part.outputs),
        nodes=tuple(node for part in parts for node in part.nodes),
        constants={name: constant for part in parts for name, constant in part.constants.items()},
        opsets={domain: version for part in parts for domain, version in part.opsets.items()},
        types={name: type_ for part in parts for name, type_ in part.types.items()},
    )


def _prefixed(function: Function, prefix: str) -> Function:
    names = [name for scope in (function, *_bodies(function.nodes)) for name in scope.value_names()]
    again = rename_values(function, {name: prefix + name for name in names})
    nodes = [
        replace(new, name=prefix + old.name, control=tuple(prefix + name for name in old.control))
        for new, old in zip(again.nodes, function.nodes, strict=True)
    ]
    return again.replace(nodes=tuple(nodes))


def _bodies(nodes: Sequence[Node]) -> list[Function]:
    own = [body for node in nodes for body in node.bodies]
    return own + [inner for body in own for inner in _bodies(body.nodes)]


def settle_batch(engine: GraphCompiler, samples: Sequence[Sample], judge: Judge) -> Mapping[int, Verdict]:
    """Return which graphs the engine declines by `why_not`, and of which it computes what ``judge`` accepts, by their indices."""
    ready = [fit_inputs(passes.inline_constant_control_flow(s.function.replace(aliases=())), s.inputs, engine) for s in samples]
    whole = passes.infer_shapes(merge(ready))
    numbers = {f"g{index}_{node.name}": index for index, function in enumerate(ready) for node in function.nodes}
    declined = {numbers[node.name] for node in whole.nodes if engine.why_not(node, whole) is not None}
    settled = dict.fromkeys(sorted(declined), Verdict.DECLINED)
    _settle([index for index in range(len(samples)) if index not in declined], engine, ready, samples, judge, settled)
    return settled


def _settle(
    chosen: Sequence[int],
    engine: GraphCompiler,
    ready: Sequence[Function],
    samples: Sequence[Sample],
    judge: Judge,
    settled: dict[int, Verdict],
) -> None:
    """Run the chosen graphs at once and note those that are right; where that fails, each half by itself."""
    if not chosen:
        return
    try:
        results = _run([ready[index] for index in chosen], engine, [given for index in chosen for given in samples[index].inputs])
    except Exception:  # noqa: BLE001  # whatever it is, a graph that is tried by itself tells it again
        if len(chosen) > 1:
            _settle(chosen[: len(chosen) // 2], engine, ready, samples, judge, settled)
            _settle(chosen[len(chosen) // 2 :], engine, ready, samples, judge, settled)
        return
    for index in chosen:
        count = len(ready[index].outputs)
        if (verdict := judge(index, results[:count])) is not Verdict.DISAGREES:
            settled[index] = verdict
        del results[:count]


def _run(functions: Sequence[Function], engine: GraphCompiler, inputs: Sequence[Any]) -> list[Any]:
    context = CompileContext(threads=available_cores())
    executable = adapt_to_host(engine.compile(passes.infer_shapes(merge(functions)), context), context)
    executable.prepare()
    try:
        return list(executable.run([value.copy() if hasattr(value, "copy") else value for value in inputs]))
    finally:
        executable.close()
