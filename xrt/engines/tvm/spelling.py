"""Operators that TVM's importer gets slow or wrong, spelled in others that it gets right.

It stacks the inputs of Sum, Mean, Max and Min and reduces the stack; it drops a NaN in Max, Min and Clip, ignores which
side IsInf asks for, has no power of one type to another, and loses all digits of a softplus below -16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, attributes_of

__all__ = ["SPELLED", "spelled"]

OLDEST = 9
"""The first opset with Where and IsNaN, and with broadcasting everywhere."""


def spelled(function: Function) -> Function:
    """Return the Function with the operators of `SPELLED` written out, their results under the same names."""
    if function.opsets.get("", 0) < OLDEST or not any(node.op in SPELLED for node in function.nodes):
        return function
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        spell = SPELLED.get(node.op)
        if spell is None:
            nodes.append(node)
            continue
        page = Page(node, function)
        page.op("Identity", spell(page), output=node.outputs[0])
        nodes += [*page.nodes[:-1], replace(page.nodes[-1], name=node.name, control=node.control)]
        constants |= page.constants
    return function.replace(nodes=tuple(nodes), constants=constants)


@dataclass(slots=True)
class Page:
    """What one node is written out as."""

    node: Node
    function: Function
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Write an operator, and return the name of its result."""
        name = output or f"{self.node.outputs[0]}/spelled/{len(self.nodes)}"
        self.nodes.append(Node(op_type, inputs, (name,), attributes_of(attributes), name=name))
        return name

    def number(self, value: float, like: str) -> str:
        """Write a scalar constant of another value's type, and return its name."""
        name = f"{self.node.outputs[0]}/spelled/number/{value}"
        self.constants[name] = Constant(np.array(value, self.dtype(like).numpy))
        return name

    def dtype(self, name: str) -> DType:
        type_ = self.function.type_of(name)
        return type_.dtype if isinstance(type_, TensorType) else DType.FLOAT32

    @property
    def x(self) -> str:
        return self.node.inputs[0]


def _sum(page: Page) -> str:
    return reduce(lambda a, b: page.op("Add", a, b), page.node.inputs)


def _mean(page: Page) -> str:
    return page.op("Div", _sum(page), page.number(len(page.node.inputs), page.x))


def _extreme(comparison: str) -> Callable[[Page], str]:
    """Return a spelling of Max or Min: the first where it wins or is NaN, else the second."""

    def of_two(page: Page, a: str, b: str) -> str:
        wins = page.op(comparison, a, b)
        if page.dtype(page.x).is_float:
            wins = page.op("Or", wins, page.op("IsNaN", a))
        return page.op("Where", wins, a, b)

    return lambda page: reduce(lambda a, b: of_two(page, a, b), page.node.inputs)


def _clip(page: Page) -> str:
    node = page.node
    bounds: dict[str, Any] = {a.name: a for a in node.attributes}
    clipped = page.op("Clip", *node.inputs, **bounds)
    return page.op("Where", page.op("IsNaN", page.x), page.x, clipped) if page.dtype(page.x).is_float else clipped


def _is_inf(page: Page) -> str:
    result, zero = page.op("IsInf", page.x), page.number(0, page.x)
    if not page.node.attr("detect_positive", 1):
        result = page.op("And", result, page.op("Less", page.x, zero))
    if not page.node.attr("detect_negative", 1):
        result = page.op("And", result, page.op("Greater", page.x, zero))
    return result


def _pow(page: Page) -> str:
    base, exponent = page.node.inputs
    return page.op("Pow", base, page.op("Cast", exponent, to=page.dtype(base).onnx))


def _softplus(page: Page) -> str:
    """Write max(x, 0) + log1p(exp(-|x|)), where log1p(u) is u log(1 + u) / ((1 + u) - 1), which rounding does not hurt."""
    one = page.number(1, page.x)
    u = page.op("Exp", page.op("Neg", page.op("Abs", page.x)))
    w = page.op("Add", u, one)
    quotient = page.op("Div", page.op("Mul", page.op("Log", w), u), page.op("Sub", w, one))
    log1p = page.op("Where", page.op("Equal", w, one), u, quotient)
    return page.op("Add", page.op("Relu", page.x), log1p)


def _mish(page: Page) -> str:
    return page.op("Mul", page.x, page.op("Tanh", _softplus(page)))


SPELLED: Mapping[str, Callable[[Page], str]] = {
    "Sum": _sum,
    "Mean": _mean,
    "Max": _extreme("Greater"),
    "Min": _extreme("Less"),
    "Clip": _clip,
    "IsInf": _is_inf,
    "Pow": _pow,
    "Softplus": _softplus,
    "Mish": _mish,
}
