"""A call of an operator of PyTorch that has no ONNX form, as a node: which operator, and all of its arguments."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError

if TYPE_CHECKING:
    from xrt.graph.node import Node

__all__ = ["DOMAIN", "OpaqueCall", "Tagged"]

DOMAIN = "aten"
"""The domain of these nodes, at version 1, whatever the namespace of the operator."""

KINDS = ("tensor", "number", "dtype", "device", "layout", "memory_format", "float", "complex")


@dataclass(frozen=True, slots=True)
class Tagged:
    """An argument that JSON has no word for.

    ``kind`` says what ``value`` is. ``tensor``: the index of the input of the node that holds the tensor. ``number``: the index
    of a 0-d input, of which the operator takes the element as a Python number (a symbolic size). ``dtype``, ``device``,
    ``layout``, ``memory_format``: PyTorch's name without ``torch.`` (``float32``, ``cpu``, ``strided``, ``contiguous_format``).
    ``float``: ``inf``, ``-inf`` or ``nan``. ``complex``: a list of the real and the imaginary part.
    """

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """An operator with its arguments. Each is None, a bool, int, float, text, a list of arguments, or `Tagged`.

    The node has the domain `DOMAIN`, the attributes ``operator`` (``aten::fft_rfft.default``, also ``mylib::blur.default``),
    ``call`` (JSON of ``{"args": [...], "kwargs": {...}}``, where a Tagged is an object with its kind as the only key) and
    ``reason`` (why there is no ONNX form). The operator modifies none of its inputs. Its outputs are the results in order:
    those of a tuple or of a list one by one. A result that is None or that nothing reads is left out (an empty name). A result
    that is a number is a 0-d tensor: int64, float64 or bool.
    """

    operator: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def op_type(self) -> str:
        """The operator type of the node: the operator's name as an identifier, ``aten_fft_rfft_default``."""
        return re.sub(r"\W+", "_", self.operator)

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of the node."""
        call = {
            "args": [_encode(item) for item in self.args],
            "kwargs": {k: _encode(self.kwargs[k]) for k in sorted(self.kwargs)},
        }
        return {"operator": self.operator, "call": json.dumps(call), "reason": self.reason}

    @classmethod
    def read(cls, node: Node) -> OpaqueCall:
        """Return the call that a node describes; raises ModelError where its attributes do not describe one."""
        operator, text = node.attr("operator"), node.attr("call")
        try:
            call = json.loads(text)
            args, kwargs = tuple(map(_decode, call["args"])), {name: _decode(item) for name, item in call["kwargs"].items()}
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ModelError(f"node {node.name!r} ({node.op}) does not describe a call of an operator: {error}") from error
        if not isinstance(operator, str):
            raise ModelError(f"node {node.name!r} ({node.op}) has no attribute 'operator'")
        return cls(operator, args, kwargs, node.attr("reason", ""))

    def resolve(self, change: Callable[[Tagged], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with each `Tagged` changed, except ``float`` and ``complex``, which become Python's numbers."""

        def one(item: Any) -> Any:
            if isinstance(item, list):
                return [one(inner) for inner in item]
            if not isinstance(item, Tagged):
                return item
            if item.kind == "float":
                return float(item.value)
            return complex(*item.value) if item.kind == "complex" else change(item)

        return [one(item) for item in self.args], {name: one(item) for name, item in self.kwargs.items()}


def _encode(item: Any) -> Any:
    if isinstance(item, Tagged):
        return {item.kind: item.value}
    if isinstance(item, list | tuple):
        return [_encode(inner) for inner in item]
    if isinstance(item, float) and not math.isfinite(item):
        return {"float": str(item)}
    if isinstance(item, complex):
        return {"complex": [item.real, item.imag]}
    if item is None or isinstance(item, bool | int | float | str):
        return item
    raise ModelError(f"an argument of an opaque operator is a {type(item).__name__}, {item!r}, which no attribute holds")


def _decode(item: Any) -> Any:
    if isinstance(item, list):
        return [_decode(inner) for inner in item]
    if not isinstance(item, dict):
        return item
    ((kind, value),) = item.items()
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of argument")
    return Tagged(kind, value)
