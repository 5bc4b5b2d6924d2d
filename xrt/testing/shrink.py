"""Make a failing graph small: take away outputs, nodes, extents and odd numbers as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Constant, DType, Function, TensorType, Value
from xrt.passes import drop_dead_nodes
from xrt.verify.execution import Run, expose_inner_values

__all__ = ["Sample", "shrink"]


@dataclass(frozen=True, eq=False)
class Sample:
    """A graph and what it is called with."""

    function: Function
    inputs: tuple[Any, ...]

    @property
    def weight(self) -> tuple[int, int, int]:
        """What shrinking makes smaller: nodes first, then what is kept of outputs and inputs, then elements."""
        function = self.function
        values = len(function.outputs) + len(function.inputs) + len(function.aliases) + len(function.constants)
        arrays = [*self.inputs, *(constant.array for constant in function.constants.values())]
        return sum(1 for _ in function.walk()), values, sum(int(a.size) for a in arrays)


Fails: TypeAlias = Callable[[Sample], bool]


def shrink(sample: Sample, fails: Fails, run: Run, tries: int = 400) -> Sample:
    """Return a sample that still fails and that no single step here makes smaller, or what ``tries`` attempts made of it.

    ``run`` is the reference: a node that is taken away leaves behind an input that holds what the node gave.
    """
    left, shrinking = tries, True
    while shrinking and left > 0:
        shrinking = False
        for smaller in _steps(sample, run):
            left -= 1
            if _is_smaller(smaller, sample) and fails(smaller):
                sample, shrinking = smaller, True
                break
            if left <= 0:
                break
    return sample


def _is_smaller(new: Sample, old: Sample) -> bool:
    return new.weight < old.weight or (new.weight == old.weight and _oddness(new) < _oddness(old))


def _oddness(sample: Sample) -> int:
    """Count the inputs' elements that are not 1, named extents and control edges."""
    odd = sum(int(np.sum(a != np.ones((), a.dtype))) for a in sample.inputs if a.dtype.kind in "fiub")
    names = sum(isinstance(d, str) for v in sample.function.inputs if isinstance(v.type, TensorType) for d in v.type.shape or ())
    return odd + names + sum(bool(node.control) for node in sample.function.nodes)


def _steps(sample: Sample, run: Run) -> Iterator[Sample]:
    """Yield what may be tried, the boldest first."""
    for step in (_one_output, _plain, _cut, _bypassed, _without_unread, _smaller_extents, _plain_numbers):
        yield from step(sample, run)


def _one_output(sample: Sample, run: Run) -> Iterator[Sample]:
    if len(sample.function.outputs) > 1:
        for value in sample.function.outputs:
            yield _living(sample.function.replace(outputs=(value,), aliases=()), sample)


def _plain(sample: Sample, run: Run) -> Iterator[Sample]:
    """Without aliases, edges of control and names of extents."""
    function = sample.function
    nodes = tuple(replace(node, control=()) for node in function.nodes)
    types = [TensorType(DType.of(a), a.shape) if isinstance(a, np.ndarray) else None for a in sample.inputs]
    inputs = tuple(Value(v.name, t or v.type) for v, t in zip(function.inputs, types, strict=True))
    yield replace(sample, function=function.replace(aliases=()))
    yield replace(sample, function=function.replace(nodes=nodes, aliases=()))
    yield replace(sample, function=function.replace(nodes=nodes, inputs=inputs, aliases=()))


def _cut(sample: Sample, run: Run) -> Iterator[Sample]:
    """Replace what a node gives by inputs; the last nodes first, since that takes away all before them."""
    for node in reversed(sample.function.nodes):
        read = [name for name in node.defines if sample.function.users(name)]
        if not read:
            continue
        values = run(expose_inner_values(sample.function, read), sample.inputs)
        if all(isinstance(value, np.ndarray) for value in values):
            yield _without(sample, node.name, dict(zip(read, values, strict=True)))


def _without(sample: Sample, node: str, values: dict[str, Any]) -> Sample:
    function = sample.function
    kept = tuple(n for n in function.nodes if n.name != node)
    made = {name for n in kept for name in n.defines} | set(values) | {v.name for v in function.inputs} | set(function.constants)
    added = tuple(Value(name, TensorType(DType.of(a), a.shape)) for name, a in values.items())
    outputs = tuple(v for v in function.outputs if v.name in made and v.name not in values)
    nodes = tuple(replace(n, control=tuple(c for c in n.control if c != node)) for n in kept)
    smaller = function.replace(inputs=(*function.inputs, *added), nodes=nodes, outputs=outputs, aliases=())
    return _living(smaller, Sample(smaller, (*sample.inputs, *values.values())))


def _bypassed(sample: Sample, run: Run) -> Iterator[Sample]:
    """Replace a node whose result is an output by what it reads."""
    function = sample.function
    outputs = {v.name for v in function.outputs}
    for node in function.nodes:
        for name in node.uses if outputs & set(node.outputs) else ():
            if function.producer(name) is not None:
                others = tuple(v for v in function.outputs if v.name not in node.outputs)
                kept = tuple(n for n in function.nodes if n.name != node.name)
                kept = tuple(replace(n, control=tuple(c for c in n.control if c != node.name)) for n in kept)
                if not any(use in node.outputs for n in kept for use in n.uses):
                    changed = function.replace(nodes=kept, outputs=(*others, Value(name, function.get_type(name))), aliases=())
                    yield _living(changed, sample)


def _without_unread(sample: Sample, run: Run) -> Iterator[Sample]:
    yield _living(sample.function, sample)


def _living(function: Function, sample: Sample) -> Sample:
    """Return the function without dead nodes, and without unread inputs and constants."""
    alive = drop_dead_nodes(function)
    held = {v.name for v in alive.outputs} | {name for node in alive.nodes for name in node.uses}
    held |= {before for before, _ in alive.aliases}
    pairs = [(v, x) for v, x in zip(function.inputs, sample.inputs, strict=False) if v.name in held]
    constants = {name: c for name, c in alive.constants.items() if name in held}
    kept = alive.replace(inputs=tuple(v for v, _ in pairs), constants=constants)
    return Sample(kept, tuple(x for _, x in pairs))


def _smaller_extents(sample: Sample, run: Run) -> Iterator[Sample]:
    """Take the first one or two along an axis of all inputs and constants of one extent, or of one input alone."""
    arrays = _arrays(sample)
    sizes = sorted({d for a in arrays.values() for d in a.shape if d > 1}, reverse=True)
    for size in sizes:
        for few in {1, 2} - {size}:
            yield _with_arrays(
                sample, {n: _first(a, [i for i, d in enumerate(a.shape) if d == size], few) for n, a in arrays.items()}
            )
    for name, array in arrays.items():
        for axis, size in enumerate(array.shape):
            for few in [n for n in (1, 2) if n < size]:
                yield _with_arrays(sample, {name: _first(array, [axis], few)})


def _first(array: Any, axes: Sequence[int], few: int) -> Any:
    return array[tuple(slice(few) if axis in axes else slice(None) for axis in range(array.ndim))]


def _plain_numbers(sample: Sample, run: Run) -> Iterator[Sample]:
    """Make an input all ones, or whole numbers."""
    for value, array in zip(sample.function.inputs, sample.inputs, strict=True):
        if array.dtype.kind in "fiu" and array.size:
            yield _with_arrays(sample, {value.name: np.ones_like(array)})
            yield _with_arrays(sample, {value.name: np.trunc(array).astype(array.dtype)})


def _arrays(sample: Sample) -> dict[str, Any]:
    given = {v.name: x for v, x in zip(sample.function.inputs, sample.inputs, strict=True)}
    return given | {name: constant.array for name, constant in sample.function.constants.items()}


def _with_arrays(sample: Sample, arrays: dict[str, Any]) -> Sample:
    """Return the sample with other inputs and constants; the outputs' shapes are left open where any changed."""
    function = sample.function
    constants = {
        n: Constant(np.ascontiguousarray(arrays[n]).reshape(arrays[n].shape)) if n in arrays else c
        for n, c in function.constants.items()
    }
    inputs = tuple(Value(v.name, _type_of(arrays[v.name])) if v.name in arrays else v for v in function.inputs)
    outputs = tuple(Value(v.name, _open(v.type)) for v in function.outputs)
    values = tuple(np.array(arrays.get(v.name, x)) for v, x in zip(function.inputs, sample.inputs, strict=True))
    return Sample(function.replace(inputs=inputs, outputs=outputs, constants=constants, types={}), values)


def _type_of(array: Any) -> TensorType:
    return TensorType(DType.of(array), array.shape)


def _open(type_: Any) -> Any:
    return (
        TensorType(type_.dtype, (None,) * len(type_.shape))
        if isinstance(type_, TensorType) and type_.shape is not None
        else type_
    )
