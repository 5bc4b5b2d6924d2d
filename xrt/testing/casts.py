"""Chains of casts between element types, with arithmetic between them, on numbers that the casts round.

A cast rounds, overflows and wraps around, and that is part of the model: an engine that drops a cast and the one back, or
computes in a wider type than the model says, gives other numbers. Each chain starts from one type, goes over one or two
others and ends with an operator, so that no cast in it gives an output of the model: libraries rewrite only inner casts.
Numbers that ONNX leaves open (of a float that no integer holds) do not go in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from xrt.comparison import EXACT, Comparison, compare
from xrt.graph import DType, Function, Node, TensorType, Value, read_attributes

__all__ = ["CAST_SOURCES", "CastChain", "compare_chain", "function_of_chains", "inputs_of_chains", "list_cast_chains"]

Array: TypeAlias = np.ndarray[Any, Any]

_limits: Callable[[Any], Any] = ml_dtypes.finfo

FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)
FLOAT8 = (DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ)
INTEGERS = tuple(map(DType.parse, ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")))
CAST_SOURCES = (*FLOATS, *FLOAT8, *INTEGERS, DType.BOOL)
"""The types that chains start from and go over."""

OPSET = 21
"""The first that knows all of these types and that engines' libraries know in full."""

_MAGNITUDES = (0.0, 1.0, 1.0001, 1.0005, 0.1, 250.5, 2049.0, 447.0, 464.0, 465.0, 57344.0, 61440.0, 65504.0, 65519.0)
_LARGE = (65520.0, 70000.0, 16777217.0, 1e10, 3.3e38, 3.4028235e38, 3.5e38, 1e300, np.inf, np.nan)
_SMALL = (1e-3, 1e-5, 6.1e-5, 6e-8, 3e-8, 2e-8, 1e-10, 1.2e-38, 1e-40, 1e-45, 1e-310)
_WHOLE = (0, 1, 2, 3, 127, 128, 129, 200, 255, 256, 257, 2049, 32767, 32768, 40000, 65535, 65536, 65537, 70000)
_SMALL_WHOLE = (0, 1, 2, 3, 5, 7, 9, 11)
"""Whole numbers whose squares all types hold."""
_WIDE = (2**24 + 1, 2**31 - 1, 2**31, 2**31 + 5, 2**32 - 1, 2**32, 2**32 + 7, 2**53 + 1, 2**63 - 1, 2**64 - 3)


@dataclass(frozen=True, slots=True)
class CastChain:
    """A chain of casts: the types that it goes over, from the one that it starts with, and what is computed on the way."""

    types: tuple[DType, ...]
    between: str = ""
    """What is computed in the second type; empty for nothing."""
    first: str = ""
    """What is computed in the first type in place of an operator that is exact there."""

    @property
    def name(self) -> str:
        return "_".join(filter(None, (self.first, *map(str, self.types), self.between)))

    @property
    def kind(self) -> str:
        """Which input the chain reads: what a float holds, what an integer holds, or what each of its types holds."""
        if all(type_.is_float for type_ in self.types):
            return "floats"
        if not any(type_.is_float for type_ in self.types):
            return "integers"
        return "natural" if any(str(type_).startswith("uint") for type_ in self.types) else "small"

    def nodes(self) -> tuple[Node, ...]:
        """Return its nodes, from the input that is called after the kind to the output that is called after the chain."""
        steps: list[tuple[str, dict[str, Any]]] = [(self.first, {}) if self.first else _mover(self.types[0])]
        for place, type_ in enumerate(self.types[1:]):
            steps.append(("Cast", {"to": type_.onnx}))
            if self.between and place == 0:
                steps.append((self.between, {}))
        steps.append(_mover(self.types[-1]))
        names = [self.kind, *(f"{self.name}/{k}" for k in range(len(steps) - 1)), self.name]
        return tuple(
            Node(
                op, (names[k],) * (2 if op == "Mul" else 1), (names[k + 1],), read_attributes(attributes), name=f"{self.name}:{k}"
            )
            for k, (op, attributes) in enumerate(steps)
        )


def _mover(type_: DType) -> tuple[str, dict[str, Any]]:
    """Return an operator that is exact in the type, and that optimisers keep."""
    return ("Neg", {}) if type_ in FLOATS else ("Transpose", {"perm": [1, 0]})


@cache
def list_cast_chains(source: DType) -> tuple[CastChain, ...]:
    """Return the chains that start from a type, each under a name of its own."""
    return tuple(_chains(source))


def _chains(source: DType) -> Iterator[CastChain]:
    for other in CAST_SOURCES:
        if other is not source:
            yield CastChain((source, other, source))
            yield from (CastChain((source, other, source), op) for op in _between(source, other))
            yield from (CastChain((source, other, last)) for last in FLOATS if _narrows_on_the_way(source, other, last))
            if {source, other} <= set(FLOATS) or {source, other} <= set(INTEGERS):
                yield CastChain((source, other), first="Mul")


def _between(source: DType, other: DType) -> tuple[str, ...]:
    if other is DType.BOOL:
        return ("Not",)
    if other in FLOATS:
        return ("Mul", "Neg") if source.is_float else ("Abs",)
    return ("Mul",) if other in INTEGERS and not source.is_float else ()


def _narrows_on_the_way(source: DType, other: DType, last: DType) -> bool:
    return source in FLOATS and other in (*FLOATS, *FLOAT8) and last not in (source, other)


def function_of_chains(source: DType, chains: Sequence[CastChain]) -> Function:
    """Return a Function of which each chain gives one output."""
    kinds = sorted({chain.kind for chain in chains})
    given = inputs_of_chains(source)
    return Function(
        inputs=tuple(Value(kind, TensorType(source, given[kind].shape)) for kind in kinds),
        outputs=tuple(Value(chain.name) for chain in chains),
        nodes=tuple(node for chain in chains for node in chain.nodes()),
        opsets={"": OPSET},
    )


def inputs_of_chains(source: DType) -> dict[str, Array]:
    """Return the values of each kind of input, of that type."""
    numbers = {"floats": (*_MAGNITUDES, *_LARGE, *_SMALL), "integers": (*_WHOLE, *_WIDE), "small": _SMALL_WHOLE}
    given = {kind: _array(values, source) for kind, values in numbers.items()}
    natural = np.abs(given["small"]) if source is not DType.BOOL else given["small"]
    return {**given, "natural": -natural if source in FLOATS else natural}  # a chain of floats begins with Neg


def _array(values: Collection[float], source: DType) -> Array:
    signed = [value for number in values for value in (number, -number)]
    if source.is_float:
        with np.errstate(over="ignore"):
            return np.array(signed, np.float64).astype(source.numpy).reshape(1, -1)
    low, high = (0, 1) if source is DType.BOOL else (np.iinfo(source.numpy).min, np.iinfo(source.numpy).max)
    return np.array([value for value in signed if low <= value <= high], source.numpy).reshape(1, -1)


def compare_chain(chain: CastChain, result: Array, expected: Array, flushing: Collection[str] = ()) -> Comparison:
    """Compare what came of a chain with what is expected: the same numbers, zeros of both signs being the same.

    With types among ``flushing`` what is a denormal number in one that the chain goes over may have become zero.
    """
    if set(map(str, chain.types)) & set(flushing) and result.shape == expected.shape:
        given = np.abs(inputs_of_chains(chain.types[0])[chain.kind].astype(np.float64)).reshape(expected.shape)
        is_denormal = (given > 0) & (given < max(float(_limits(t.numpy).tiny) for t in chain.types if str(t) in flushing))
        result = np.where(is_denormal & (result.astype(np.float64) == 0), expected, result)
    return compare(result, expected, EXACT, name=chain.name)
