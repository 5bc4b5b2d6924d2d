"""Sequences, which are lists, and optionals, which are a value or None. No list that was given is changed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

ops("SequenceConstruct")(lambda at: lambda *values: list(values))
ops("SequenceEmpty")(lambda at: list)
ops("SequenceLength")(lambda at: lambda sequence: torch.tensor(len(sequence)))
ops("Optional")(lambda at: lambda value=None: value)
ops("OptionalHasElement")(lambda at: lambda value=None: torch.tensor(value is not None))


@ops("OptionalGetElement")
def optional_get_element(at: TorchKernelContext) -> Run:
    def run(value: Any) -> Any:
        if value is None:
            raise ValueError("the optional has no element")
        return value

    return run


@ops("SequenceAt")
def sequence_at(at: TorchKernelContext) -> Run:
    return lambda sequence, position: sequence[_place(position, len(sequence))]


@ops("SequenceErase")
def sequence_erase(at: TorchKernelContext) -> Run:
    def run(sequence: list[Any], position: Tensor = None) -> list[Any]:
        place = _place(position, len(sequence))
        return [*sequence[:place], *sequence[place + 1 :]]

    return run


@ops("SequenceInsert")
def sequence_insert(at: TorchKernelContext) -> Run:
    def run(sequence: list[Any], value: Any, position: Tensor = None) -> list[Any]:
        place = len(sequence) if position is None else _place(position, len(sequence), insert=True)
        return [*sequence[:place], value, *sequence[place:]]

    return run


def _place(position: Tensor, length: int, *, insert: bool = False) -> int:
    """Return an index counted from the front, by default of the last element."""
    place = -1 if position is None else int(position)
    end = length if insert else length - 1
    if not -length <= place <= end:
        raise IndexError(f"position {place} is outside of a sequence of {length}; it must be from {-length} to {end}")
    return place + length if place < 0 else place


@ops("ConcatFromSequence")
def concat_from_sequence(at: TorchKernelContext) -> Run:
    join, axis = torch.stack if at.attr("new_axis", 0) else torch.cat, at.attr("axis")
    return lambda sequence: join(sequence, axis)


@ops("SplitToSequence")
def split_to_sequence(at: TorchKernelContext) -> Run:
    """Parts of one size (the last may be smaller), of given sizes, or single elements whose axis may be dropped."""
    axis, keep = at.attr("axis", 0), at.attr("keepdims", 1)

    def run(x: Tensor, split: Tensor = None) -> list[Tensor]:
        if split is None:
            return list(x.split(1, axis) if keep else x.unbind(axis))
        if split.ndim == 0:
            ends = [*range(0, x.shape[axis], int(split)), x.shape[axis]]
            return [x.narrow(axis, start, end - start) for start, end in pairwise(ends)]
        return list(x.split(split.tolist(), axis))

    return run


@ops("SequenceMap")
def sequence_map(at: TorchKernelContext) -> Run:
    """Run the body on each element; inputs that are tensors are the same for all."""
    body, given, n_outputs = at.body("body"), len(at.node.inputs), at.n_outputs

    def run(*values: Any) -> tuple[list[Any], ...]:
        inputs, captured = values[:given], values[given:]
        rows = [
            body([value[i] if isinstance(value, list) else value for value in inputs], captured) for i in range(len(inputs[0]))
        ]
        return tuple([row[i] for row in rows] for i in range(n_outputs))

    return run
