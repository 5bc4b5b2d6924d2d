"""Write the stub files of `xrt.ops`, for editors and type checkers, from the schemas of the installed ``onnx``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from xrt.builder.ops.functions import find_newest_operator, list_names, list_parameters
from xrt.builder.record_op import CONTROL_FLOW
from xrt.graph.attributes import AttrKind
from xrt.graph.schemas import DTYPE_ATTRIBUTES, FormalAttribute, Operator, format_domain

OPS = Path(__file__).parents[1] / "xrt" / "builder" / "ops"
_TYPES = {
    AttrKind.FLOAT: "float",
    AttrKind.INT: "int",
    AttrKind.STRING: "str | bytes",
    AttrKind.TENSOR: "Operand",
    AttrKind.GRAPH: "Callable[..., Any] | Function",
    AttrKind.FLOATS: "Sequence[float]",
    AttrKind.INTS: "Sequence[int]",
    AttrKind.STRINGS: "Sequence[str | bytes]",
    AttrKind.TENSORS: "Sequence[Operand]",
    AttrKind.GRAPHS: "Sequence[Callable[..., Any] | Function]",
    AttrKind.TYPE: "Type",
    AttrKind.TYPES: "Sequence[Type]",
}

_HEAD = '''\
"""Operators of {title}. Written from the schemas of onnx by `make stubs`; do not edit."""
# fmt: off
# ruff: noqa: A002, E501, F401, N802, N803, RUF100

from collections.abc import Callable, Sequence
from typing import Any, overload

from xrt.builder import DTypeLike, Operand, Tensor
{more}from xrt.graph import Function, Type
'''

_MORE = "from xrt.builder.ops import ml as ml\n"

_CUSTOM = """
def custom(
    op_type: str, *inputs: Operand | None, domain: str, version: int = 1, types: Sequence[Type | None] = ...,
    name: str | None = None, **attributes: Any,
) -> Any: ...
"""


def make_stub(domain: str) -> str:
    """Make the text of the stub file for the operators of a domain."""
    operators = (find_newest_operator(name, domain) for name in list_names(domain))
    lines = (line for operator in operators if operator and not operator.is_deprecated for line in _definitions(operator))
    return (
        _HEAD.format(title=format_domain(domain), more="" if domain else _MORE)
        + ("" if domain else _CUSTOM)
        + "\n"
        + "\n".join(lines)
        + "\n"
    )


def _definitions(operator: Operator) -> Iterator[str]:
    """Yield the definition of an operator, or two overloads if ``outputs`` changes the result type."""
    result = _result(operator)
    if operator.max_outputs == 1 or result == "Any":
        yield _definition(operator, "int | None = None", result)
    else:
        yield "@overload"
        yield _definition(operator, "None = None", result)
        yield "@overload"
        yield _definition(operator, "int", "tuple[Tensor, ...]")


def _definition(operator: Operator, outputs: str, result: str) -> str:
    parts = list(_parameter_texts(operator, outputs))
    return f"def {operator.name}({', '.join(parts)}) -> {result}: ..."


def _parameter_texts(operator: Operator, outputs: str) -> Iterator[str]:
    variadic = any(formal.is_variadic for formal in operator.inputs)
    before = None
    for parameter in list_parameters(operator):
        if before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
            yield "/"
        if parameter.kind is parameter.KEYWORD_ONLY and before is not parameter.kind and not variadic:
            yield "*"
        yield _parameter_text(operator, parameter, outputs)
        before = parameter.kind


def _parameter_text(operator: Operator, parameter: inspect.Parameter, outputs: str) -> str:
    name = parameter.name
    if name in operator.attributes:
        return _attribute_text(operator.attributes[name], parameter.default)
    if name == "outputs":
        return f"outputs: {outputs}"
    if name == "name":
        return "name: str | None = None"
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{name}: Operand"
    return f"{name}: Operand" if parameter.default is parameter.empty else f"{name}: Operand | None = None"


def _attribute_text(attribute: FormalAttribute, default: object) -> str:
    is_dtype = attribute.kind is AttrKind.INT and attribute.name in DTYPE_ATTRIBUTES
    type_ = "int | DTypeLike" if is_dtype else _TYPES[attribute.kind]
    return f"{attribute.name}: {type_}" if attribute.is_required else f"{attribute.name}: {type_} | None = {default!r}"


def _result(operator: Operator) -> str:
    """Find the annotation of the result if ``outputs`` is not passed."""
    if operator.name in CONTROL_FLOW:
        return "Any"
    if operator.max_outputs is None:
        return "tuple[Tensor, ...]"
    count = sum(not formal.is_optional for formal in operator.outputs) or len(operator.outputs)
    return "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"


def main() -> None:
    """Write ``__init__.pyi`` and ``ml.pyi``."""
    (OPS / "__init__.pyi").write_text(make_stub(""), encoding="utf-8")
    (OPS / "ml.pyi").write_text(make_stub("ai.onnx.ml"), encoding="utf-8")


if __name__ == "__main__":
    main()
