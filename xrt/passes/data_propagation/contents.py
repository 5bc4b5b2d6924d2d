"""Partly known contents of small tensors: what a shape that is computed holds, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Constant, DType, Node, TensorType, Type

__all__ = ["FOLLOWED", "MOST_ELEMENTS", "Contents", "Elements", "PropagationCase", "Rule"]

MOST_ELEMENTS = 128
"""Shapes, pads and bounds are shorter; what is longer is not followed."""

FOLLOWED = frozenset({DType.INT64, DType.INT32, DType.BOOL, DType.FLOAT32, DType.FLOAT64})
"""Types that shapes are computed in."""

Elements: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"
"""Numbers, names of extents (which are integers and not negative), and None for what is unknown."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A tensor whose shape is known, and of whose elements some are."""

    dtype: DType
    elements: Elements

    @classmethod
    def of(cls, constant: Constant) -> Contents | None:
        """Return the contents of a constant; None where it is too large, or of a type that no shape is computed in."""
        if constant.dtype not in FOLLOWED or constant.array.size > MOST_ELEMENTS:
            return None
        return cls(constant.dtype, constant.array.astype(object))

    @property
    def is_known(self) -> bool:
        return all(not isinstance(element, str) and element is not None for element in self.elements.flat)

    def constant(self) -> Constant | None:
        """Return the tensor where every element is a number."""
        return Constant(self.elements.astype(self.dtype.numpy)) if self.is_known else None

    def integers(self) -> list[int] | None:
        """Return the elements as a list, None where one is not known."""
        return [int(element) for element in self.elements.flat] if self.is_known else None


@dataclass(frozen=True, slots=True)
class PropagationCase:
    """A node whose first input, or one of them, is partly known."""

    node: Node
    inputs: Sequence[Contents | None]
    types: Sequence[Type | None]

    def known(self, index: int) -> Contents | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int, attribute: str = "") -> list[int] | None:
        """Return an input of integers, or the attribute that it was in older opsets; None where neither is known."""
        if attribute and (value := self.node.attr(attribute)) is not None:
            return list(value)
        found = self.known(index)
        return None if found is None else found.integers()

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def spread(self) -> list[Contents] | None:
        """Return what all inputs hold, unknown elements included; None where a shape is not known, or nothing at all."""
        parts = [one or _unknown(type_) for one, type_ in zip(self.inputs, self.types, strict=True)]
        known = [one for one in parts if one is not None]
        return known if len(known) == len(parts) and any(one is not None for one in self.inputs) else None


def _unknown(type_: Type | None) -> Contents | None:
    """Return contents of which nothing but the number is known."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.dtype not in FOLLOWED:
        return None
    shape = tuple(d for d in type_.shape or () if isinstance(d, int))
    return Contents(type_.dtype, np.full(shape, None, object)) if math.prod(shape) <= MOST_ELEMENTS else None


Rule: TypeAlias = Callable[[PropagationCase], Sequence[Contents | None]]
"""Says what the outputs of a node hold."""
