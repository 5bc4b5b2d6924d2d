"""Sequences, which are lists, and optionals, which are a value or None. No list that was given is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("SequenceConstruct")
def sequence_construct(node: Node, env: KernelContext) -> Run:
    return lambda *values: list(values)


@ops("SequenceEmpty")
def sequence_empty(node: Node, env: KernelContext) -> Run:
    return list


@ops("SequenceAt", host=(1,))
def sequence_at(node: Node, env: KernelContext) -> Run:
    return lambda sequence, position: sequence[_place(position, len(sequence))]


@ops("SequenceErase", host=(1,))
def sequence_erase(node: Node, env: KernelContext) -> Run:
    def run(sequence: list[Any], position: Array | None = None) -> list[Any]:
        place = _place(position, len(sequence))
        return [*sequence[:place], *sequence[place + 1 :]]

    return run


@ops("SequenceInsert", host=(2,))
def sequence_insert(node: Node, env: KernelContext) -> Run:
    def run(sequence: list[Any], value: Any, position: Array | None = None) -> list[Any]:
        place = len(sequence) if position is None else _place(position, len(sequence), insert=True)
        return [*sequence[:place], value, *sequence[place:]]

    return run


def _place(position: Array | None, length: int, *, insert: bool = False) -> int:
    """Return an index counted from the front, by default of the last element."""
    place = -1 if position is None else int(position.reshape(()))
    end = length if insert else length - 1
    if not -length <= place <= end:
        raise IndexError(f"position {place} is outside of a sequence of {length}; it must be from {-length} to {end}")
    return place + length if place < 0 else place


@ops("SequenceLength")
def sequence_length(node: Node, env: KernelContext) -> Run:
    return lambda sequence: np.array(len(sequence), dtype=np.int64)


@ops("ConcatFromSequence")
def concat_from_sequence(node: Node, env: KernelContext) -> Run:
    join = env.xp.stack if node.attr("new_axis", 0) else env.xp.concatenate
    axis = node.attr("axis")
    return lambda sequence: join(sequence, axis=axis)


@ops("SplitToSequence", host=(1,))
def split_to_sequence(node: Node, env: KernelContext) -> Run:
    """Parts of one size (the last may be smaller), of given sizes, or single elements whose axis may be dropped."""
    xp, axis, keep = env.xp, node.attr("axis", 0), node.attr("keepdims", 1)

    def run(x: Array, split: Array | None = None) -> list[Array]:
        if split is None:
            ends = list(range(1, x.shape[axis]))
        elif split.ndim == 0:
            ends = list(range(int(split), x.shape[axis], int(split)))
        else:
            ends = np.cumsum(split)[:-1].tolist()
        parts: list[Array] = xp.split(x, ends, axis=axis)
        return parts if keep or split is not None else [xp.squeeze(part, axis=axis) for part in parts]

    return run


@ops("SequenceMap")
def sequence_map(node: Node, env: KernelContext) -> Run:
    """Run the body on each element; inputs that are tensors are the same for all."""
    body, given = env.body("body"), len(node.inputs)

    def run(*values: Any) -> tuple[list[Any], ...]:
        inputs, captured = values[:given], values[given:]
        rows = [
            body([value[i] if isinstance(value, list) else value for value in inputs], captured) for i in range(len(inputs[0]))
        ]
        return tuple([row[i] for row in rows] for i in range(env.n_outputs))

    return run


@ops("Optional")
def optional(node: Node, env: KernelContext) -> Run:
    return lambda value=None: value


@ops("OptionalHasElement")
def optional_has_element(node: Node, env: KernelContext) -> Run:
    return lambda value=None: np.array(value is not None)


@ops("OptionalGetElement")
def optional_get_element(node: Node, env: KernelContext) -> Run:
    return lambda x: x
