"""How large an expression is, written out: what TVM shares between two places counts in both, as in everything it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm.ir import TensorLoad

__all__ = ["differences", "is_arithmetic", "loads", "operations"]

_FIELDS = ("a", "b", "condition", "true_value", "false_value", "value", "body")


def operations(statement: Any) -> int:
    """Return the number of operations of a block's body, without the places that it reads and writes."""
    return _total(statement, lambda node: 1 if next(_parts(node), None) is not None else 0, {})


def loads(statement: Any, buffer: Any = None) -> int:
    """Return how often a block's body reads a buffer; without one, how often it reads at all."""
    return _total(
        statement, lambda node: int(isinstance(node, TensorLoad) and (buffer is None or node.source.same_as(buffer))), {}
    )


def differences(statement: Any) -> int:
    """Return how many subtractions a block's body has of two floating-point numbers that are not literals."""
    return _total(statement, lambda node: int(_is_difference(node)), {})


def is_arithmetic(statement: Any) -> bool:
    """Whether a block's body has nothing but operations that are one instruction on a whole vector."""
    return not _total(statement, lambda node: int(not _is_instruction(node)), {})


def _is_instruction(node: Any) -> bool:
    name = getattr(getattr(node, "op", None), "name", "")
    return type(node).__name__ in _INSTRUCTIONS or name in _INTRINSICS or next(_parts(node), None) is None


_INSTRUCTIONS = {
    *("TensorStore", "BufferStore", "TensorLoad", "Add", "Sub", "Mul", "Div", "Max", "Min", "Select", "Cast"),
    *("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or", "Not"),
}
_INTRINSICS = {
    f"tirx.{name}"
    for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "fma", "isnan", "reinterpret", "shift_left", "shift_right")
}


def _is_difference(node: Any) -> bool:
    return (
        type(node).__name__ == "Sub" and "float" in str(node.ty) and not any(hasattr(part, "value") for part in (node.a, node.b))
    )


def _total(node: Any, count: Callable[[Any], int], known: dict[int, int]) -> int:
    """Return the sum over the tree; linear in the graph that it is held as."""
    key = hash(node)  # of the address, which lives as long as the root
    if key not in known:
        known[key] = count(node) + sum(_total(part, count, known) for part in _parts(node))
    return known[key]


def _parts(node: Any) -> Iterator[Any]:
    if isinstance(node, TensorLoad):
        return
    for name in _FIELDS:
        if (part := getattr(node, name, None)) is not None and not isinstance(part, int | float):
            yield part
    yield from getattr(node, "args", ())
