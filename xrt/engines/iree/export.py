"""Export a Function to MLIR: one ``torch.operator "onnx.<Op>"`` per node, which IREE's compiler lowers.

The arguments of ``main`` are the inputs, then a buffer for each output, so that results are written to the caller's memory. Small
constants are literals, because the compiler must know shapes, axes and scales. Large ones are *parameters*: the code refers to
them by name, and the executable passes them by reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from iree.runtime import HalElementType

from xrt.engines.iree.tables import EXPANDED_BY_ONNX, LOWERED
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toolkit.rewrites import write_convolutions_as_products
from xrt.engines.toolkit.support import MAX_CONSTANT_ELEMENTS
from xrt.formats.onnx import upgrade_opset
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Type, since_version
from xrt.operators import NodeWriter, decompose_nodes, rewrite_nodes
from xrt.operators.decompositions import write_decomposition
from xrt.passes import drop_dead_nodes, find_decomposition, fold_constants, infer_shapes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class MlirType:
    """The names of an element type in MLIR, and its number in IREE's runtime."""

    torch: str
    """The name in torch-mlir, such as ``si32`` and ``ui32``: signed and unsigned integers are different types."""
    builtin: str
    """The name in IREE's own dialects, such as ``i32`` for both signed and unsigned integers."""
    hal_type: int
    """The number of the type in IREE's runtime. Compiled code checks the number for each buffer."""


_PREFIXES = {"float": "f", "bfloat": "bf", "int": "si", "uint": "ui"}
"""By kind of number: the prefix of its types in torch-mlir."""


def _make_mlir_type(dtype: DType) -> MlirType:
    kind = dtype.text.rstrip("0123456789")
    torch = f"{_PREFIXES[kind]}{dtype.bits}"
    # IREE's own dialects and its buffers have one type for signed and unsigned integers.
    hal_name = f"{kind.removeprefix('u').upper()}_{dtype.bits}"
    return MlirType(torch, torch.lstrip("su"), int(getattr(HalElementType, hal_name)))


_INTEGERS = [dtype for dtype in DType if dtype.is_integer and dtype.bits >= 8]
MLIR_TYPES = {
    dtype: _make_mlir_type(dtype) for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, *_INTEGERS)
}
MLIR_TYPES[DType.BOOL] = MlirType("i1", "i1", int(HalElementType.BOOL_8))


def format_value_type(type_: Type | None) -> str:
    """Format the torch-mlir type of a value. Raises ValueError if torch-mlir has no such type."""
    shape, element = _split_type(type_)
    return f"!torch.vtensor<[{','.join(shape)}],{element.torch}>"


def format_storage_type(type_: Type | None) -> str:
    """Format the torch-mlir type of a buffer for an output of type ``type_``."""
    return format_value_type(type_).replace("!torch.vtensor", "!torch.tensor")


def format_builtin_type(type_: Type | None) -> str:
    """Format the type of a tensor in IREE's own dialects."""
    shape, element = _split_type(type_)
    return f"tensor<{'x'.join([*shape, element.builtin])}>"


def _split_type(type_: Type | None) -> tuple[list[str], MlirType]:
    """Return the dims of a tensor type in MLIR's notation, and its element type; raises ValueError for other types."""
    if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in MLIR_TYPES:
        raise ValueError(f"a value of type {type_} has no MLIR type that IREE supports")
    return [str(extent) if isinstance(extent, int) else "?" for extent in type_.shape], MLIR_TYPES[type_.dtype]


PARAMETER_SCOPE = "weights"
"""The namespace of the parameters in MLIR and in the runtime."""
_NONE = "%none"
"""The MLIR value that stands for an omitted input."""


def list_parameters(function: Function) -> dict[str, Constant]:
    """Map the names of large constants to the constants, in the order of first use, which is the same for equal Functions."""
    used = dict.fromkeys(name for node in function.nodes for name in node.uses)
    used.update(dict.fromkeys(value.name for value in function.outputs))
    used_constants = {name: function.constants[name] for name in used if name in function.constants}
    return {name: constant for name, constant in used_constants.items() if constant.array.size > MAX_CONSTANT_ELEMENTS}


def export_module(function: Function) -> str:
    """Write a Function as an MLIR module whose ``main`` writes its results to buffers of the caller.

    All types must be known. Raises ValueError for an element type, an unknown rank or a body that MLIR cannot express.
    """
    weights = list_parameters(function)
    writer = _ModuleWriter(function)
    inputs = [f"{writer.name_value(value.name)}: {format_value_type(value.type)}" for value in function.inputs]
    storage = [f"%out{k}: {format_storage_type(function.get_type(v.name))}" for k, v in enumerate(function.outputs)]
    # The body of ``main``: load the weights, compute the nodes, write the results to the buffers.
    for index, (name, constant) in enumerate(weights.items()):
        writer.write_parameter(index, name, constant)
    writer.write_body()
    for k, value in enumerate(function.outputs):
        writer.write_result(k, value.name)
    writer.lines.append("return")
    globals_ = [
        f'util.global private @weight{index} = #flow.parameter.named<"{PARAMETER_SCOPE}"::"{index}"> : {builtin}'
        for index, builtin in enumerate(format_builtin_type(constant.type) for constant in weights.values())
    ]
    return writer.format_module("main", [*inputs, *storage], globals_=globals_)


def make_query_module(function: Function, name: str) -> str:
    """Write a Function as an MLIR module with one function ``name`` that returns its results. All constants are literals."""
    writer = _ModuleWriter(function)
    inputs = [f"{writer.name_value(value.name)}: {format_value_type(value.type)}" for value in function.inputs]
    writer.write_body()
    types = ", ".join(format_value_type(function.get_type(value.name)) for value in function.outputs)
    writer.lines.append(f"return {', '.join(writer.values[value.name] for value in function.outputs)} : {types}")
    return writer.format_module(name, inputs, f" -> ({types})")


@dataclass(slots=True)
class _ModuleWriter:
    """Writes the lines of one MLIR function. ``values`` maps names of the Function to names in MLIR."""

    function: Function
    values: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def format_module(self, name: str, arguments: Sequence[str], results: str = "", globals_: Sequence[str] = ()) -> str:
        """Format a module with one function, whose body is the written lines. ``globals_`` are lines before the function."""
        # The lowest opset with the operator versions of the nodes, because IREE's rules are written for certain versions.
        opset = max((since_version(node, self.function) or 1 for node in self.function.nodes), default=1)
        meta = f"{{torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = {opset} : si64}}"
        head = f"func.func @{name}({', '.join(arguments)}){results} attributes {meta} {{"
        return "\n".join(["module {", *globals_, head, *self.lines, "}", "}", ""])

    def name_value(self, name: str) -> str:
        return self.values.setdefault(name, f"%v{len(self.values)}")

    def write_parameter(self, index: int, name: str, constant: Constant) -> None:
        builtin, value = format_builtin_type(constant.type), format_value_type(constant.type)
        self.lines.append(f"%weight{index} = util.global.load @weight{index} : {builtin}")
        self.lines.append(f"{self.name_value(name)} = torch_c.from_builtin_tensor %weight{index} : {builtin} -> {value}")

    def write_body(self) -> None:
        self.lines.append(f"{_NONE} = torch.constant.none")
        for name in dict.fromkeys(self._iter_names()):
            if name in self.function.constants and name not in self.values:
                self._write_literal(name, self.function.constants[name])
        for node in self.function.nodes:
            self._write_operator(node)

    def write_result(self, index: int, name: str) -> None:
        type_ = self.function.get_type(name)
        value, storage = format_value_type(type_), format_storage_type(type_)
        self.lines.append(f"torch.overwrite.tensor.contents {self.values[name]} overwrites %out{index} : {value}, {storage}")

    def _iter_names(self) -> Iterator[str]:
        for node in self.function.nodes:
            yield from node.uses
        yield from (value.name for value in self.function.outputs)

    def _write_literal(self, name: str, constant: Constant) -> None:
        attributes = f"{{torch.onnx.value = {_format_tensor(constant)}}}"
        self.lines.append(
            f'{self.name_value(name)} = torch.operator "onnx.Constant"() {attributes} : () -> {format_value_type(constant.type)}'
        )

    def _write_operator(self, node: Node) -> None:
        """Write ``%r0, %r1 = torch.operator "onnx.<Op>"(%a, %b) {attributes} : (types of operands) -> types of results``."""
        operands = [self.values[name] if name else _NONE for name in node.inputs]
        in_types = [format_value_type(self.function.get_type(name)) if name else "!torch.none" for name in node.inputs]
        out_types = [format_value_type(self.function.get_type(name)) if name else "!torch.none" for name in node.outputs]
        # MLIR needs a name for each result, even if the node omits the output. The number of the line makes it unique.
        results = [self.name_value(name) if name else f"%unused{len(self.lines)}_{k}" for k, name in enumerate(node.outputs)]
        attributes = ", ".join(f"torch.onnx.{a.name} = {_format_attribute(a)}" for a in node.attributes)
        dictionary = f" {{{attributes}}}" if attributes else ""
        out_type = out_types[0] if len(out_types) == 1 else f"({', '.join(out_types)})"
        types = f"({', '.join(in_types)}) -> {out_type}"
        call = f'torch.operator "onnx.{node.op_type}"({", ".join(operands)}){dictionary} : {types}'
        self.lines.append(f"{', '.join(results)} = {call}" if results else call)


def _format_attribute(attribute: Attribute) -> str:
    format_value = _FORMATTERS.get(attribute.kind.element)
    if format_value is None:
        raise ValueError(f"attribute {attribute.name!r} is a {attribute.kind.name.lower()}, which cannot be written in this MLIR")
    return f"[{', '.join(map(format_value, attribute.value))}]" if attribute.kind.is_list else format_value(attribute.value)


def _format_float(value: float) -> str:
    """Format a float32 by its bits in hexadecimal, which is exact, also for infinities."""
    return f"0x{np.float32(value).view(np.uint32):08X} : f32"


def _format_string(value: str | bytes) -> str:
    if isinstance(value, bytes) or not value.isascii() or not value.isprintable():
        raise ValueError(f"the attribute {value!r} is not printable ASCII and cannot be written in this MLIR")
    return json.dumps(value)


def _format_tensor(constant: Constant) -> str:
    """Format a literal by its bytes in hexadecimal. Booleans are listed one by one, because MLIR packs their bytes to bits."""
    array = constant.array
    shape, element = _split_type(constant.type)
    type_ = f"tensor<{'x'.join([*shape, element.torch])}>"
    if not array.size:
        return f"dense<> : {type_}"
    if constant.dtype is DType.BOOL:
        return f"dense<{json.dumps(array.tolist())}> : {type_}"
    return f'dense<"0x{array.tobytes().hex().upper()}"> : {type_}'


_FORMATTERS: Mapping[AttrKind, Callable[[Any], str]] = {
    AttrKind.FLOAT: _format_float,
    AttrKind.INT: lambda value: f"{value} : si64",
    AttrKind.STRING: _format_string,
    AttrKind.TENSOR: _format_tensor,
}


def _rewrite_node(w: NodeWriter) -> str | Sequence[str] | None:
    """Write a replacement for ``w.node`` and return the names of its results; None leaves the node as it is."""
    if w.node.op in LOWERED:
        return write_decomposition(w)
    rule = _REWRITTEN.get(w.node.op)
    return None if rule is None else rule(w)


def _index_along_axis(w: NodeWriter) -> str:
    """Write the same operator with nonnegative indices within the bounds of its axis."""
    return _write_indexed(w, np.array(w.extents(w.x)[w.attr("axis", 0)]))


def _index_by_coordinates(w: NodeWriter) -> str:
    """Write the same operator with nonnegative coordinates within the bounds."""
    # The indices are (..., depth): coordinates along the ``depth`` axes of the data that follow its ``batch_dims`` axes.
    batch, depth = w.attr("batch_dims", 0), w.extents(w.node.inputs[1])[-1]
    return _write_indexed(w, np.array(w.extents(w.x)[batch : batch + depth]))


def _write_indexed(w: NodeWriter, extents: Array) -> str:
    """Write the node with `_normalize_indices`. ``extents`` are those of the indexed axes, and broadcast to the indices."""
    return w.op(w.node.op_type, w.x, _normalize_indices(w, extents), *w.node.inputs[2:], attributes=w.node.attributes)


def _normalize_indices(w: NodeWriter, extents: Array) -> str:
    """Make negative indices positive, and clamp indices to the bounds: IREE supports no negative ones and checks no bounds."""
    indices, constant = w.node.inputs[1], w.find_input(1)
    # Constant indices are usually valid.
    if constant is not None and bool(((constant >= 0) & (constant < extents)).all()):
        return indices
    integer = w.dtype(indices).numpy
    zero = w.constant(0, integer)
    from_start = w.op("Add", indices, w.constant(extents, integer))
    positive = w.op("Where", w.op("Less", indices, zero), from_start, indices)
    return w.op("Min", w.op("Max", positive, zero), w.constant(extents - 1, integer))


def _conv(w: NodeWriter) -> str | None:
    """If an axis has a single window, remove the elements after it, which IREE's compiler would include in the product."""
    if len(w.node.inputs) < 2 or w.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    extents = np.array(w.extents(w.x)[2:])
    if not extents.all():
        return None
    pads_before, pads_after = np.array(w.attr("pads") or [0, 0] * len(extents)).reshape(2, -1)
    unread = _count_unread_elements(w, extents + pads_before + pads_after)
    unread_padding = np.minimum(unread, pads_after)  # the last elements are padding, those before them data
    unread_data = unread - unread_padding
    ends = extents - unread_data
    if not unread.any() or (ends < 1).any():
        return None
    data = w.x
    if unread_data.any():
        axes = np.arange(2, 2 + len(ends))
        data = w.op("Slice", w.x, w.constant(np.zeros_like(axes)), w.constant(ends), w.constant(axes))
    pads = Attribute.create("pads", [*pads_before.tolist(), *(pads_after - unread_padding).tolist()])
    other_attributes = (attribute for attribute in w.node.attributes if attribute.name != "pads")
    return w.op("Conv", data, *w.node.inputs[1:], attributes=(*other_attributes, pads))


def _count_unread_elements(w: NodeWriter, extents: Array) -> Array:
    """For each axis, count the elements after its only window; 0 if it has several windows. ``extents`` include the padding."""
    # From the weights, because the attribute kernel_shape may be absent.
    window = np.array(w.extents(w.node.inputs[1])[2:])
    strides = np.array(w.attr("strides") or np.ones_like(window))
    dilations = np.array(w.attr("dilations") or np.ones_like(window))
    num_after = extents - ((window - 1) * dilations + 1)
    # With at least a stride of elements after the first window, there is a second one.
    return np.where(num_after < strides, num_after, 0)


_REWRITTEN: Mapping[str, Callable[[NodeWriter], str | None]] = {
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements"), _index_along_axis),
    **dict.fromkeys(("GatherND", "ScatterND"), _index_by_coordinates),
    "Conv": _conv,
}
"""Rules for operators that IREE computes wrong for some inputs or attributes. They are for `MIN_OPSET` and later."""


def _find_function_body(node: Node, function: Function) -> Function | None:
    return find_decomposition(node, function) if node.op in EXPANDED_BY_ONNX else None


MIN_OPSET = 18
"""Functions are upgraded to at least this opset, because IREE has no rules for many older operator versions."""


def preprocess(function: Function) -> Function:
    """Prepare a Function for export: infer types, upgrade the opset, fold constants, decompose operators.

    Constants are folded here, because IREE simplifies exp(-(1 / c) * c) to exp(-1) even for c = 0. Convolutions are written as
    matrix products if products are faster. Raises ModelError, which is a ValueError, if an operator cannot be upgraded to
    `MIN_OPSET`. Equal Functions must give equal results, because a saved module contains no weights: `Iree.load` computes them
    again.
    """
    # No supported node has side effects, so control edges have no effect.
    free = function.replace(nodes=tuple(replace(node, control=()) for node in function.nodes))
    # Upgrades and decompositions depend on types, so infer them first, and again after each step that adds nodes.
    upgraded = upgrade_opset(infer_shapes(free), MIN_OPSET)
    expanded = decompose_nodes(infer_shapes(upgraded), _find_function_body)
    folded = infer_shapes(fold_constants(infer_shapes(expanded), evaluate))
    products = write_convolutions_as_products(folded)
    rewritten = rewrite_nodes(infer_shapes(products), _rewrite_node)
    return infer_shapes(drop_dead_nodes(rewritten))
