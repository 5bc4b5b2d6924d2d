"""One case: a node, what it reads, and who else says what must come out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xrt.comparison import Tolerance
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

__all__ = ["Array", "Case", "Drawn", "case"]

Array = np.ndarray[Any, Any]
Formula = Callable[..., Any]
"""Computes the outputs from the inputs, with nothing of XRT and nothing of ``onnx.reference``."""


@dataclass(frozen=True, eq=False)
class Case:
    """A node alone."""

    op: str
    """With its domain, where that is not ONNX's own."""
    label: str
    function: Function
    inputs: tuple[Any, ...]
    formula: Formula | None = None
    """None: onnxruntime is the witness."""
    source: str = "onnxruntime"
    """Who the witness is."""
    tolerance: Tolerance | None = None
    """None: that of the type, for one operator."""

    @property
    def name(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op


@dataclass(slots=True)
class Drawn:
    """Random inputs, the same for each case whatever runs before it."""

    seed: str
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(zlib.crc32(self.seed.encode()))

    def floats(self, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Array:
        return (self.generator.standard_normal(shape) * scale).astype(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
        return self.generator.integers(low, high, shape).astype(dtype)


def case(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    label: str = "",
    opset: int = 21,
    ml: int = 3,
    constants: Sequence[int] = (),
    outputs: int = 1,
    types: Sequence[Any] = (),
    formula: Formula | None = None,
    source: str = "",
    tolerance: Tolerance | None = None,
) -> Case:
    """Return the case of a node with those inputs, None for one that is left out; those at ``constants`` are constants.

    ``types`` are those of inputs that are not tensors, by position, else None; the types of outputs are not declared.
    """
    domain, _, kind = op.rpartition(":")
    names = tuple("" if value is None else f"x{i}" for i, value in enumerate(inputs))
    given = [(name, value, i) for i, (name, value) in enumerate(zip(names, inputs, strict=True)) if name]
    declared = dict(enumerate(types))
    node = Node(kind, names, tuple(f"y{i}" for i in range(outputs)), read_attributes(dict(attributes or {})), domain, "node")
    function = Function(
        inputs=tuple(Value(name, declared.get(i) or _type(value)) for name, value, i in given if i not in constants),
        outputs=tuple(Value(name) for name in node.outputs),
        nodes=(node,),
        constants={name: Constant(value) for name, value, i in given if i in constants},
        opsets={"": opset, domain: ml} if domain else {"": opset},
    )
    values = tuple(value for _, value, i in given if i not in constants)
    source = source or ("onnxruntime" if formula is None else "NumPy")
    return Case(op, label or _label(inputs, attributes or {}, opset), function, values, formula, source, tolerance)


def _type(value: Array) -> TensorType:
    return TensorType(DType.of(value), value.shape)


def _label(inputs: Sequence[Any], attributes: Mapping[str, Any], opset: int) -> str:
    shown = [f"{x.dtype}{list(x.shape)}".replace(" ", "") if isinstance(x, np.ndarray) else "_" for x in inputs[:4]]
    options = [f"{name}={value}".replace(" ", "") for name, value in attributes.items() if np.size(value) <= 12]
    return ",".join([*shown, *options, f"v{opset}"])
