"""Ways to run a Function without a plan: on one engine by its contract alone, and in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from xrt import passes
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileRefused
from xrt.graph import Function, Node, TensorType, Value
from xrt.runtime import adapt_to_host, available_cores

__all__ = [
    "Run",
    "Stopped",
    "compile_alone",
    "copy_values",
    "expose_all_values",
    "expose_inner_values",
    "find_region",
    "fit_inputs",
    "run_alone",
    "run_pieces",
    "run_regions",
    "split_regions",
]

Run: TypeAlias = Callable[[Function, Sequence[Any]], Sequence[Any]]
"""Runs a Function on inputs and returns its outputs."""


class Stopped(Exception):
    """What the reference was to compute is no longer needed."""


def compile_alone(
    engine: GraphCompiler, function: Function, inputs: Sequence[Any], context: CompileContext | None = None
) -> Executable:
    """Return a prepared executable, made by the engine's contract alone with nothing of XRT in between.

    Control flow that constants decide is inlined, as it is before any engine sees a model: one library crashes on it.
    On the device of the context it takes and gives arrays of the host all the same. Without a context it may use all cores
    of the host. Raises CompileRefused when `why_not` answers for a node, or the engine refuses.
    """
    context = context or CompileContext(threads=available_cores())
    ready = fit_inputs(passes.inline_constant_control_flow(function), inputs, engine)
    for node in ready.nodes:
        placed = node if context.device == "cpu" else replace(node, device=context.device)
        if (reason := engine.why_not(placed, ready)) is not None:
            raise CompileRefused(f"{node.op}: {reason}")
    executable = adapt_to_host(engine.compile(ready, context), context)
    executable.prepare()
    return executable


def fit_inputs(function: Function, inputs: Sequence[Any], engine: GraphCompiler) -> Function:
    """Return the function with types inferred, and with the inputs' shapes where the engine wants them fixed."""
    whole = passes.infer_shapes(function)
    is_static = all(isinstance(v.type, TensorType) and v.type.is_static for v in function.inputs)
    if is_static or engine.why_not_dynamic(whole) is None:
        return whole
    pairs = zip(function.inputs, inputs, strict=True)
    return passes.specialize(function, {v.name: x.shape for v, x in pairs if isinstance(v.type, TensorType)})


def copy_values(value: Any) -> Any:
    """Return a value that shares no array with the given one, so that an engine that writes to its inputs spoils nothing."""
    if isinstance(value, list):
        return [copy_values(item) for item in value]
    return value.copy() if hasattr(value, "dtype") or isinstance(value, dict) else value


def run_alone(engine: GraphCompiler, function: Function, inputs: Sequence[Any]) -> list[Any]:
    """Compile, run once and close; raises CompileRefused as `compiled` does."""
    executable = compile_alone(engine, function, inputs)
    try:
        return list(executable.run(inputs))
    finally:
        executable.close()


# ---------------------------------------------------------------------- in pieces


def split_regions(function: Function, labels: Sequence[int]) -> tuple[Function, ...]:
    """Return the Function cut up: nodes of one label are one piece, and pieces run in the order of their labels.

    No label may be smaller than that of a node before it. This is independent of the partitioner on purpose, so that tests can
    compare the two. Aliases are left out.
    """
    pieces: dict[int, list[Node]] = {}
    for node, label in zip(function.nodes, labels, strict=True):
        pieces.setdefault(label, []).append(node)
    return tuple(find_region(function, pieces[label]).replace(name=f"piece{label}") for label in sorted(pieces))


def find_region(function: Function, nodes: Sequence[Node]) -> Function:
    """Return those nodes, listed in the Function's order, as a closed Function: it gives out what is read outside of it."""
    made = {name for node in nodes for name in node.defines}
    read = dict.fromkeys(name for node in nodes for name in node.uses if name not in made)
    inside, ends = {node.name for node in nodes}, {value.name for value in function.outputs}
    outputs = [name for name in made if name in ends or any(use.node.name not in inside for use in function.users(name))]
    return function.replace(
        inputs=tuple(function.value(name) for name in read if name not in function.constants),
        outputs=tuple(function.value(name) for name in sorted(outputs)),
        nodes=_without_outer_control(nodes),
        constants={name: function.constants[name] for name in read if name in function.constants},
        aliases=(),
    )


def _without_outer_control(nodes: Sequence[Node]) -> tuple[Node, ...]:
    inside = {node.name for node in nodes}
    return tuple(replace(node, control=tuple(c for c in node.control if c in inside)) for node in nodes)


def run_regions(function: Function, labels: Sequence[int], inputs: Sequence[Any], run: Run) -> list[Any]:
    """Run the regions of those labels one after the other and return the Function's outputs."""
    return run_pieces(function, split_regions(passes.infer_shapes(function), labels), inputs, run)


def run_pieces(function: Function, pieces: Sequence[Function], inputs: Sequence[Any], run: Run) -> list[Any]:
    """Run what `split_regions` has made of the Function, one piece after the other, and return the Function's outputs.

    A value is let go of after the last piece that reads it.
    """
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, given) for value, given in zip(function.inputs, inputs, strict=True))
    last = {value.name: place for place, piece in enumerate(pieces) for value in piece.inputs}
    last.update((value.name, len(pieces)) for value in function.outputs)
    for place, piece in enumerate(pieces):
        results = run(piece, [values[value.name] for value in piece.inputs])
        values.update((value.name, result) for value, result in zip(piece.outputs, results, strict=True))
        del results
        for value in (*piece.inputs, *piece.outputs):
            if last.get(value.name, -1) <= place:
                values.pop(value.name, None)
    return [values[value.name] for value in function.outputs]


def expose_inner_values(function: Function, names: Sequence[str]) -> Function:
    """Return the Function with those values, and only those, as its outputs."""
    return function.replace(outputs=tuple(Value(name, function.get_type(name)) for name in names), aliases=())


def expose_all_values(function: Function) -> Function:
    """Return the function with all that its nodes compute as outputs, in the order in which it is computed."""
    names = [name for node in function.nodes for name in node.outputs if name]
    return function.replace(outputs=tuple(Value(name, function.get_type(name)) for name in names), aliases=())
