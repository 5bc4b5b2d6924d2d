"""Print a Function in XRT's text form, which `xrt.formats.text.parse` reads.

    function double(x: float32[N,3]) -> (y: float32[N,3]) {
      opset ai.onnx 26
      const two: float32[] = 2.0
      h: float32[N,3] = Relu(x)
      y = Mul(h, two) @times on "cpu" after h
    }

One line per constant and node, in the Function's order. Names of other than letters, digits, ``_``, ``.`` and ``/`` are quoted;
``_`` is an omitted input or output. A node output has a type if the Function declares it. ``@`` precedes the name of a node if
it differs from that of the first output.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.graph.attributes import Attribute, AttrKind
from xrt.graph.types import Dim, DType, MapType, OptionalType, SequenceType, TensorType, Type, Value

if TYPE_CHECKING:
    from xrt.graph.constants import Constant
    from xrt.graph.function import Function
    from xrt.graph.node import Node
    from xrt.html.views import Box, Edge


MAX_PRINTED_ELEMENTS = 16  # constants of more elements are printed as digests or in base64
KEYWORDS = frozenset(
    {"_", "after", "alias", "base64", "bytes", "const", "doc", "function", "meta", "on", "opset", "sha256", "tensor", "type"}
)
"""Keywords of the text form; a name equal to one of them is quoted."""

_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_./]*")


def format_function(function: Function, *, complete: bool = False) -> str:
    """Print a Function.

    Without ``complete``, constants of more than `MAX_PRINTED_ELEMENTS` elements are printed as digests, which `parse` rejects.
    """
    return "\n".join(_Printer(complete).list_lines(function, "", ""))


def format_type(type_: Type | None) -> str:
    """Print a type: ``float32[N,3,?]``, ``seq(int64[...])``, or ``?`` if unknown."""
    if isinstance(type_, TensorType):
        if type_.shape is None:
            return f"{type_.dtype}[...]"
        return f"{type_.dtype}[{','.join(map(_format_dim, type_.shape))}]"
    if isinstance(type_, MapType):
        return f"map({type_.key},{format_type(type_.value)})"
    if isinstance(type_, SequenceType):
        return f"seq({format_type(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({format_type(type_.element)})"
    return "?"


def _format_dim(dim: Dim) -> str:
    if dim is None:
        return "?"
    return _format_name(dim) if isinstance(dim, str) else str(dim)


def _format_name(name: str) -> str:
    return name if _WORD.fullmatch(name) and name not in KEYWORDS else _quote(name)


def _format_domain(domain: str) -> str:
    """Print a domain; the empty domain prints as ai.onnx, so a domain with that literal name is quoted."""
    return _quote(domain) if domain == "ai.onnx" else _format_name(domain or "ai.onnx")


def _format_value_name(name: str) -> str:
    return _format_name(name) if name else "_"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


class _Printer:
    """Generates the lines of a Function."""

    def __init__(self, complete: bool) -> None:
        self.complete = complete

    def list_lines(self, function: Function, indent: str, head: str) -> Iterator[str]:
        """Yield the lines of a Function, each after ``indent``; ``head`` is prepended to the first one."""
        inputs = _format_values(function.inputs)
        outputs = _format_values(function.outputs)
        yield f"{indent}{head}function {_format_name(function.name)}({inputs}) -> ({outputs}) {{"
        inner = indent + "  "
        yield from (inner + line for line in self._list_declarations(function))
        for node in function.nodes:
            yield from self._list_node_lines(node, function, inner)
        yield indent + "}"

    def _list_declarations(self, function: Function) -> Iterator[str]:
        if function.doc:
            yield f"doc {_quote(function.doc)}"
        for domain, version in function.opsets.items():
            yield f"opset {_format_domain(domain)} {version}"
        for key, text in function.metadata.items():
            yield f"meta {_quote(key)} = {_quote(text)}"
        for target, source in function.aliases:
            yield f"alias {_format_name(target)} = {_format_name(source)}"
        for name, type_ in function.types.items():
            if function.producer_index(name) is None:  # the types of node outputs are printed with the nodes
                yield f"type {_format_name(name)}: {format_type(type_)}"
        for name, constant in function.constants.items():
            yield f"const {_format_name(name)}: {format_type(constant.type)} = {self._format_constant(constant)}"

    def _list_node_lines(self, node: Node, function: Function, indent: str) -> Iterator[str]:
        """Yield ``outputs = domain::Op(inputs) {attributes} @name on "device" after nodes``: one line, or more for bodies."""
        outputs = ", ".join(_format_output(name, function) for name in node.outputs) or "()"
        domain = f"{_format_name(node.domain)}::" if node.domain else ""
        start = f"{indent}{outputs} = {domain}{_format_name(node.op_type)}({', '.join(map(_format_value_name, node.inputs))})"
        end = f" @{_format_name(node.name)}" if node.name != next(node.defined_names, "") else ""
        end += f" on {_quote(node.device)}" if node.device else ""
        end += f" after {', '.join(map(_format_name, node.control))}" if node.control else ""
        if any(a.kind in (AttrKind.GRAPH, AttrKind.GRAPHS) for a in node.attributes):
            yield start + " {"
            for attribute in node.attributes:
                yield from self._list_attribute_lines(attribute, indent + "  ")
            yield f"{indent}}}{end}"
        else:
            attributes = ", ".join(f"{_format_name(a.name)} = {self._format_attribute(a)}" for a in node.attributes)
            yield f"{start} {{{attributes}}}{end}" if attributes else f"{start}{end}"

    def _list_attribute_lines(self, attribute: Attribute, indent: str) -> Iterator[str]:
        """Yield the lines of one attribute of a node with bodies, ending with a comma."""
        head = f"{_format_name(attribute.name)} = "
        if attribute.kind is AttrKind.GRAPH:
            *lines, last = self.list_lines(attribute.value, indent, head)
            yield from (*lines, last + ",")
        elif attribute.kind is AttrKind.GRAPHS and attribute.value:
            yield f"{indent}{head}["
            for body in attribute.value:
                *lines, last = self.list_lines(body, indent + "  ", "")
                yield from (*lines, last + ",")
            yield indent + "],"
        else:
            yield f"{indent}{head}{self._format_attribute(attribute)},"

    def _format_attribute(self, attribute: Attribute) -> str:
        kind = attribute.kind
        if kind.is_list and not attribute.value:  # without items, the kind cannot be inferred
            return f"{kind.name.lower()} []"
        items = attribute.value if kind.is_list else (attribute.value,)
        if kind.element is AttrKind.TENSOR:
            texts = [f"tensor {format_type(item.type)} {self._format_constant(item)}" for item in items]
        else:
            texts = [_FORMAT_ITEM[kind.element](item) for item in items]
        return f"[{', '.join(texts)}]" if kind.is_list else texts[0]

    def _format_constant(self, constant: Constant) -> str:
        if not self.complete and constant.array.size > MAX_PRINTED_ELEMENTS:
            return f'sha256 "{constant.digest.hex()}"'
        texts = format_elements(constant)
        if texts is None:
            return f'base64 "{base64.b64encode(np.ascontiguousarray(constant.array).tobytes()).decode()}"'
        return texts[0] if constant.shape == () else f"[{', '.join(texts)}]"


def _format_values(values: Sequence[Value]) -> str:
    return ", ".join(f"{_format_value_name(value.name)}: {format_type(value.type)}" for value in values)


def _format_output(name: str, function: Function) -> str:
    type_ = function.types.get(name) if name else None
    return f"{_format_value_name(name)}: {format_type(type_)}" if type_ is not None else _format_value_name(name)


_FORMAT_ITEM: dict[AttrKind, Callable[[Any], str]] = {
    AttrKind.INT: str,
    AttrKind.FLOAT: lambda value: _format_float(np.float32(value)),
    AttrKind.STRING: lambda value: _quote(value) if isinstance(value, str) else f'bytes "{value.hex()}"',
    AttrKind.TYPE: lambda value: f"type {format_type(value)}",
}


def format_elements(constant: Constant) -> list[str] | None:
    """Print each element as text. None for too many numbers, or if parsing the texts would not restore every bit."""
    if constant.dtype is DType.STRING:
        return [_quote(text) for text in constant.array.flat]
    if constant.array.size > MAX_PRINTED_ELEMENTS or constant.dtype.numpy.kind == "c":
        return None
    texts = [_format_number(element, constant.dtype) for element in constant.array.flat]
    # Numbers lose the payload of a NaN; such constants are printed in base64.
    return texts if parse_numbers(texts, constant.dtype).tobytes() == constant.array.tobytes() else None


def parse_numbers(texts: list[str], dtype: DType) -> np.ndarray[Any, Any]:
    """Parse numbers to a 1-d array; raises ValueError or OverflowError for text that is not a value of ``dtype``."""
    if dtype is DType.BOOL:
        for text in texts:
            if text not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
        return np.asarray([text == "true" for text in texts], dtype.numpy)
    if dtype.is_integer:
        wide = np.asarray([int(text) for text in texts], np.uint64 if dtype is DType.UINT64 else np.int64)
        narrow = wide.astype(dtype.numpy)
        if not (narrow.astype(wide.dtype) == wide).all():
            raise OverflowError(f"a number is out of the range of {dtype}")
        return narrow
    # Narrow types are rounded from float32, as they are printed.
    wide = np.asarray([float(text) for text in texts], np.float64)
    if dtype is not DType.FLOAT64:
        with np.errstate(over="ignore"):
            wide = wide.astype(np.float32)
    for number, text in zip(wide, texts, strict=True):
        if np.isinf(number) and "inf" not in text:
            raise OverflowError(f"{text} is out of the range of {dtype}")
    return wide.astype(dtype.numpy)


def _format_number(element: Any, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "true" if element else "false"
    if dtype.is_integer:
        return str(int(element))
    return repr(float(element)) if dtype is DType.FLOAT64 else _format_float(np.float32(element))


def _format_float(number: np.float32) -> str:
    """The shortest text that restores the float32, always recognizable as a float."""
    text = str(number)
    return text if any(c in text for c in ".en") else f"{text}.0"  # a point, an exponent, or inf and nan


MAX_PRINTED_NODES = 200  # the cell includes the text of Functions of up to this many nodes
MAX_OPERATOR_ROWS = 12  # one more row has the sum of all other operators


def render_function(function: Function) -> str:
    """Render the notebook cell of a Function."""
    from xrt.html.views import format_bytes, format_count, render_cell

    weights = sum(constant.nbytes for constant in function.constants.values())
    facts = {
        "nodes": str(len(function.nodes)),
        "constants": f"{len(function.constants)}, {format_bytes(weights)}" if function.constants else None,
        "operators of": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in function.opsets.items()) or None,
        "updates": ", ".join(f"{target} with {source}" for target, source in function.aliases) or None,
    }
    ends = [(value.name, "input", format_type(value.type)) for value in function.inputs]
    ends += [(value.name, "output", format_type(value.type)) for value in function.outputs]
    counts = Counter(node.op for node in function.nodes).most_common()
    operators = counts[:MAX_OPERATOR_ROWS]
    if other_counts := counts[MAX_OPERATOR_ROWS:]:
        operators.append((format_count(len(other_counts), "other kind"), sum(count for _, count in other_counts)))
    return render_cell(
        "function.html",
        name=function.name,
        doc=function.doc,
        facts=facts,
        ends=ends,
        drawing=_draw(function) if function.nodes else None,
        operators=operators,
        text=str(function) if len(function.nodes) <= MAX_PRINTED_NODES else "",
    )


def _draw(function: Function) -> dict[str, Any]:
    from xrt.html.views import MAX_BOXES, draw_boxes, format_count, split_in_boxes

    groups = split_in_boxes(len(function.nodes))
    title = f"The graph of {function.name}: {format_count(len(function.nodes), 'node')}"
    note = (
        f", drawn in {MAX_BOXES} boxes, each of them nodes that run one after the other"
        if len(function.nodes) > MAX_BOXES
        else ""
    )
    return draw_boxes([_make_box(function, group) for group in groups], _find_flows(function, groups), f"{title}{note}.")


def _make_box(function: Function, group: range) -> Box:
    """Make the box of one node, with its type, or of several, with the number of each operator and the first and last name."""
    from xrt.html.views import Box, format_count

    nodes = [function.nodes[index] for index in group]
    first, last = nodes[0], nodes[-1]
    if first is last:
        output_type = next((format_type(function.get_type(name)) for name in first.defined_names), "")
        return Box((first.op, first.name, output_type), "op", f"{first.name} ({first.op})")
    counts = Counter(node.op for node in nodes).most_common()
    operators = ", ".join(f"{op} ×{count}" if count > 1 else op for op, count in counts)
    span = f"{first.name} to {last.name}"
    return Box((format_count(len(nodes), "node"), operators, span), "op", span)


def _find_flows(function: Function, groups: Sequence[range]) -> dict[Edge, int]:
    """Sum the bytes that flow between boxes. A value counts once for each box that reads it; an unknown size counts as 0."""
    from xrt.html.views import INPUTS_BOX

    # Box 0 has the inputs, the last one the results; between them is a box per group.
    box_of = {index: box for box, group in enumerate(groups, 1) for index in group}
    origins = {value.name: INPUTS_BOX for value in function.inputs}
    reads = set()
    for index, node in enumerate(function.nodes):
        reads |= {(origins[name], box_of[index], name) for name in node.uses if name in origins}
        origins |= dict.fromkeys(node.defined_names, box_of[index])
    # Edges to the results have no name, so that they are drawn without a size.
    returned = {(origins[value.name], len(groups) + 1, "") for value in function.outputs if value.name in origins}
    flows: Counter[Edge] = Counter()
    for source, target, name in sorted(reads | returned):
        if source != target:
            flows[source, target] += _count_bytes(function, name)
    return dict(sorted(flows.items()))


def _count_bytes(function: Function, name: str) -> int:
    type_ = function.get_type(name) if name else None
    return (type_.nbytes or 0) if isinstance(type_, TensorType) else 0
