"""Types of values: tensors, sequences, optionals and maps; and the Value that carries one under a name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from xrt.graph.dtypes import DType

__all__ = [
    "LARGEST_EXTENT",
    "Dim",
    "MapType",
    "OptionalType",
    "SequenceType",
    "Shape",
    "TensorType",
    "Type",
    "Value",
    "is_static",
]

LARGEST_EXTENT = 2**63 - 1
"""What the 64 bits of ONNX hold."""

Dim: TypeAlias = int | str | None
"""An extent, the name of an extent that is known only at run time, or None: not known at all."""

Shape: TypeAlias = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor; prints as ``float32[N,3,?]``, or ``float32[...]`` when not even the rank is known."""

    dtype: DType
    shape: Shape | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every extent is a number."""
        return self.shape is not None and all(type(d) is int for d in self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes of a tensor of this type in memory; None unless it is static and not of strings."""
        if self.shape is None or self.dtype is DType.STRING:
            return None
        count: int = self.dtype.numpy.itemsize
        for dim in self.shape:
            if not isinstance(dim, int):
                return None
            count *= dim
        return count

    def with_shape(self, shape: Shape | None) -> TensorType:
        return replace(self, shape=shape)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type; a Python list at run time."""

    element: Type

    def __str__(self) -> str:
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value or None."""

    element: Type

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary (ai.onnx.ml)."""

    key: DType
    value: Type

    def __str__(self) -> str:
        return f"map({self.key},{self.value})"


Type: TypeAlias = TensorType | SequenceType | OptionalType | MapType


@dataclass(frozen=True, slots=True)
class Value:
    """A name with its type; the type is None where nothing is known of it."""

    name: str
    type: Type | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.type if self.type is not None else '?'}"


def is_static(type_: Type | None) -> bool:
    """Whether the type is a tensor whose extents are all numbers."""
    return isinstance(type_, TensorType) and type_.is_static
