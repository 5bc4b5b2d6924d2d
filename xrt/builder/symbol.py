"""Symbolic values of a graph under construction, and the active builder that records operations on them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from xrt.errors import ModelError
from xrt.graph.types import Shape, TensorType, Type, Value

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.graph.types import DType


# A context variable, not a global: graphs may be traced in several threads or tasks at once.
recording: ContextVar[Builder | None] = ContextVar("recording", default=None)
"""The innermost active builder of this context."""


def current(operation: str) -> Builder:
    """The active builder; raises ModelError, mentioning ``operation``, if there is none."""
    builder = recording.get()
    if builder is None:
        raise ModelError(
            f"{operation} builds a graph, and none is being traced here; call it inside xrt.Graph.build (or `with Builder():`), "
            f"and run the graph with xrt.XRTModule"
        )
    return builder


class Symbol:
    """A named value of a builder, with its type or None if the type is unknown."""

    __slots__ = ("builder", "name", "type")

    def __init__(self, builder: Builder, name: str, type_: Type | None) -> None:
        self.builder = builder
        self.name = name
        self.type = type_

    @property
    def value(self) -> Value:
        """The name and type as a Value."""
        return Value(self.name, self.type)

    @property
    def tensor_type(self) -> TensorType:
        """The type; raises ModelError if it is unknown or not a tensor."""
        if isinstance(self.type, TensorType):
            return self.type
        problem = "its type is not known" if self.type is None else f"it is a {self.type}"
        raise ModelError(f"value {self.name!r} is used as a tensor, but {problem}; apply operators of xrt.ops to it instead")

    @property
    def dtype(self) -> DType:
        """The element type; raises ModelError if the value is not known to be a tensor."""
        return self.tensor_type.dtype

    @property
    def shape(self) -> Shape:
        """The extents; raises ModelError if the rank is unknown."""
        shape = self.tensor_type.shape
        if shape is None:
            raise ModelError(
                f"the rank of {self.value} is not known while the graph is traced; xrt.ops.Shape computes it at run time"
            )
        return shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.value}>"
