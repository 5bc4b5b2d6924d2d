"""Run a Function without a plan, on one engine or in pieces, and expose its inner values as outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from xrt import passes
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.contract.graph_compiler import prepare_or_close
from xrt.errors import CompileRefused
from xrt.graph import Function, Node, TensorType, Value
from xrt.runtime import adapt_to_host, count_available_cores

Run: TypeAlias = Callable[[Function, Sequence[Any]], Sequence[Any]]
"""Runs a Function on inputs and returns its outputs."""


class Stopped(Exception):
    """Raised to end a comparison whose verdict the caller no longer needs."""


def compile_alone(
    engine: GraphCompiler, function: Function, inputs: Sequence[Any], context: CompileContext | None = None
) -> Executable:
    """Compile and prepare a Function on an engine, without XRT's runtime in between.

    Control flow with constant conditions is inlined first, as in a module, because one library crashes on it. The executable
    accepts and returns host arrays, whatever its device. The default context uses all cores. Raises CompileRefused if the engine
    does not support a node, or refuses to compile the Function.
    """
    context = context or CompileContext(threads=count_available_cores())
    prepared = fit_inputs(passes.inline_constant_control_flow(function), inputs, engine)
    for node in prepared.nodes:
        # Engines read the device from the node.
        placed = node if context.device == "cpu" else replace(node, device=context.device)
        if (reason := engine.why_not(placed, prepared)) is not None:
            raise CompileRefused(f"{node.op}: {reason}")
    return prepare_or_close(adapt_to_host(engine.compile(prepared, context), context))


def fit_inputs(function: Function, inputs: Sequence[Any], engine: GraphCompiler) -> Function:
    """Infer the types of a Function, and specialize it to the shapes of the inputs if the engine needs static shapes."""
    typed = passes.infer_shapes(function)
    is_static = all(isinstance(v.type, TensorType) and v.type.is_static for v in function.inputs)
    if is_static or engine.why_not_dynamic(typed) is None:
        return typed
    pairs = zip(function.inputs, inputs, strict=True)
    return passes.specialize(function, {v.name: x.shape for v, x in pairs if isinstance(v.type, TensorType)})


def run_alone(
    engine: GraphCompiler, function: Function, inputs: Sequence[Any], context: CompileContext | None = None
) -> list[Any]:
    """Compile, run once and close; raises CompileRefused like `compile_alone`."""
    executable = compile_alone(engine, function, inputs, context)
    try:
        return list(executable.run(inputs))
    finally:
        executable.close()


def split_regions(function: Function, labels: Sequence[int]) -> tuple[Function, ...]:
    """Split a Function into pieces, one for each label, in label order. ``labels`` has the label of each node.

    Labels must not decrease along the nodes. Aliases are dropped. This does not use the partitioner, so that tests can compare
    the two.
    """
    pieces: dict[int, list[Node]] = {}
    for node, label in zip(function.nodes, labels, strict=True):
        pieces.setdefault(label, []).append(node)
    return tuple(find_region(function, pieces[label]).replace(name=f"piece{label}") for label in sorted(pieces))


def find_region(function: Function, nodes: Sequence[Node]) -> Function:
    """Extract nodes as a Function. Its outputs are the values that other nodes read, and outputs of the whole Function.

    Its inputs are the values that the nodes read but do not define. Control edges from other nodes are dropped.
    """
    defined_names = {name for node in nodes for name in node.defined_names}
    read = dict.fromkeys(name for node in nodes for name in node.uses if name not in defined_names)
    inside, output_names = {node.name for node in nodes}, {value.name for value in function.outputs}
    outputs = [
        name for name in defined_names if name in output_names or any(use.node.name not in inside for use in function.users(name))
    ]
    return function.replace(
        inputs=tuple(function.value(name) for name in read if name not in function.constants),
        outputs=tuple(function.value(name) for name in sorted(outputs)),
        nodes=tuple(replace(node, control=tuple(c for c in node.control if c in inside)) for node in nodes),
        constants={name: function.constants[name] for name in read if name in function.constants},
        aliases=(),
    )


def run_regions(function: Function, labels: Sequence[int], inputs: Sequence[Any], run: Run) -> list[Any]:
    """Split the Function by labels, as `split_regions` does, and run the pieces in order; return its outputs."""
    return run_pieces(function, split_regions(passes.infer_shapes(function), labels), inputs, run)


def run_pieces(function: Function, pieces: Sequence[Function], inputs: Sequence[Any], run: Run) -> list[Any]:
    """Run the pieces of `split_regions` one after another; return the Function's outputs.

    A value is freed after the last piece that reads it.
    """
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, array) for value, array in zip(function.inputs, inputs, strict=True))
    last_reader = {value.name: index for index, piece in enumerate(pieces) for value in piece.inputs}
    # Outputs of the Function live to the end.
    last_reader.update((value.name, len(pieces)) for value in function.outputs)
    for index, piece in enumerate(pieces):
        results = run(piece, [values[value.name] for value in piece.inputs])
        values.update((value.name, result) for value, result in zip(piece.outputs, results, strict=True))
        # Drop the list, so that values can be freed below.
        del results
        for value in (*piece.inputs, *piece.outputs):
            if last_reader.get(value.name, -1) <= index:
                values.pop(value.name, None)
    return [values[value.name] for value in function.outputs]


def expose_inner_values(function: Function, names: Sequence[str]) -> Function:
    return function.replace(outputs=tuple(Value(name, function.get_type(name)) for name in names), aliases=())


def expose_all_values(function: Function) -> Function:
    return expose_inner_values(function, [name for node in function.nodes for name in node.outputs if name])
