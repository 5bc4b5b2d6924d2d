"""Export a Function to MLIR: one ``torch.operator "onnx.<Op>"`` per node, which IREE's compiler lowers.

``main`` has the inputs and a buffer per output as arguments, so that results are written to the caller's memory. Small constants
are literals. Large ones are *parameters*: the code refers to them by name, and the executable passes them by reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from iree.runtime import HalElementType

from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Type, since_version


@dataclass(frozen=True, slots=True)
class MlirType:
    """An element type in MLIR."""

    torch: str
    """In torch-mlir's types and literals, with signed and unsigned integers."""
    builtin: str
    """In the tensors that IREE computes with, whose integers have no sign."""
    hal: int
    """The runtime's code, checked for each buffer."""


def _integer(bits: int, hal: int) -> tuple[MlirType, MlirType]:
    return MlirType(f"si{bits}", f"i{bits}", hal), MlirType(f"ui{bits}", f"i{bits}", hal)


_INT8, _UINT8 = _integer(8, int(HalElementType.INT_8))
_INT16, _UINT16 = _integer(16, int(HalElementType.INT_16))
_INT32, _UINT32 = _integer(32, int(HalElementType.INT_32))
_INT64, _UINT64 = _integer(64, int(HalElementType.INT_64))
ELEMENTS = {
    DType.FLOAT32: MlirType("f32", "f32", int(HalElementType.FLOAT_32)),
    DType.FLOAT64: MlirType("f64", "f64", int(HalElementType.FLOAT_64)),
    DType.FLOAT16: MlirType("f16", "f16", int(HalElementType.FLOAT_16)),
    DType.BFLOAT16: MlirType("bf16", "bf16", int(HalElementType.BFLOAT_16)),
    DType.INT8: _INT8,
    DType.INT16: _INT16,
    DType.INT32: _INT32,
    DType.INT64: _INT64,
    DType.UINT8: _UINT8,
    DType.UINT16: _UINT16,
    DType.UINT32: _UINT32,
    DType.UINT64: _UINT64,
    DType.BOOL: MlirType("i1", "i1", int(HalElementType.BOOL_8)),
}


def value_type(type_: Type | None) -> str:
    """The torch-mlir type of a value; raises ValueError if there is none."""
    shape, element = _parts(type_)
    return f"!torch.vtensor<[{','.join(shape)}],{element.torch}>"


def storage_type(type_: Type | None) -> str:
    """The type of the buffer that a value is written to."""
    return value_type(type_).replace("!torch.vtensor", "!torch.tensor")


def builtin_type(type_: Type | None) -> str:
    """The type of a tensor in IREE's own dialects."""
    shape, element = _parts(type_)
    return f"tensor<{'x'.join([*shape, element.builtin])}>"


def literal_type(type_: Type | None) -> str:
    """The type of a literal."""
    shape, element = _parts(type_)
    return f"tensor<{'x'.join([*shape, element.torch])}>"


def _parts(type_: Type | None) -> tuple[list[str], MlirType]:
    if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in ELEMENTS:
        raise ValueError(f"a value of type {type_} has no type in MLIR that IREE computes with")
    return [str(extent) if isinstance(extent, int) else "?" for extent in type_.shape], ELEMENTS[type_.dtype]


INLINE = 64
"""Constants of up to this many elements are literals: shapes, axes and scales, which the compiler must know."""


SCOPE = "weights"
"""Scope of the parameters."""
_LEFT_OUT = "%none"


def list_parameters(function: Function) -> dict[str, Constant]:
    """Constants that are parameters, by name, in order of first use, which is the same in equal Functions."""
    used = dict.fromkeys(name for node in function.nodes for name in node.uses)
    used.update(dict.fromkeys(value.name for value in function.outputs))
    read_constants = {name: function.constants[name] for name in used if name in function.constants}
    return {name: constant for name, constant in read_constants.items() if constant.array.size > INLINE}


def export_module(function: Function) -> str:
    """Write a Function with known types as a module whose ``main`` writes to buffers of the caller.

    Raises ValueError for an element type, unknown rank or body that cannot be expressed.
    """
    weights = list_parameters(function)
    writer = _ModuleWriter(function)
    inputs = [f"{writer.bind(value.name)}: {value_type(value.type)}" for value in function.inputs]
    storage = [f"%out{k}: {storage_type(function.get_type(v.name))}" for k, v in enumerate(function.outputs)]
    for place, (name, constant) in enumerate(weights.items()):
        writer.load(place, name, constant)
    writer.body()
    for k, value in enumerate(function.outputs):
        writer.overwrite(k, value.name)
    writer.lines.append("return")
    globals_ = [_global(place, constant) for place, constant in enumerate(weights.values())]
    return _module([*globals_, *_function("main", [*inputs, *storage], "", _opset(function), writer.lines)])


def make_query_module(function: Function, name: str) -> str:
    """Write a Function as a module with one named function that returns its outputs; without parameters."""
    writer = _ModuleWriter(function)
    inputs = [f"{writer.bind(value.name)}: {value_type(value.type)}" for value in function.inputs]
    writer.body()
    types = ", ".join(value_type(function.get_type(value.name)) for value in function.outputs)
    writer.lines.append(f"return {', '.join(writer.values[value.name] for value in function.outputs)} : {types}")
    return _module(_function(name, inputs, f" -> ({types})", _opset(function), writer.lines))


def _opset(function: Function) -> int:
    """The lowest opset with the same operator versions: the compiler's rules are written for those."""
    return max((since_version(node, function) or 1 for node in function.nodes), default=1)


def _module(lines: Iterable[str]) -> str:
    return "\n".join(["module {", *(f"  {line}" for line in lines), "}", ""])


def _function(name: str, arguments: Sequence[str], results: str, opset: int, lines: Sequence[str]) -> Iterator[str]:
    meta = f"{{torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = {opset} : si64}}"
    yield f"func.func @{name}({', '.join(arguments)}){results} attributes {meta} {{"
    yield from (f"  {line}" for line in lines)
    yield "}"


def _global(place: int, constant: Constant) -> str:
    parameter = f'#flow.parameter.named<"{SCOPE}"::"{place}">'
    return f"util.global private @weight{place} = {parameter} : {builtin_type(constant.type)}"


@dataclass(slots=True)
class _ModuleWriter:
    """Writes the lines of one function and names its values."""

    function: Function
    values: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def bind(self, name: str) -> str:
        return self.values.setdefault(name, f"%v{len(self.values)}")

    def load(self, place: int, name: str, constant: Constant) -> None:
        builtin, value = builtin_type(constant.type), value_type(constant.type)
        self.lines.append(f"%weight{place} = util.global.load @weight{place} : {builtin}")
        self.lines.append(f"{self.bind(name)} = torch_c.from_builtin_tensor %weight{place} : {builtin} -> {value}")

    def body(self) -> None:
        self.lines.append(f"{_LEFT_OUT} = torch.constant.none")
        for name in dict.fromkeys(self._read()):
            if name in self.function.constants and name not in self.values:
                self._literal(name, self.function.constants[name])
        for node in self.function.nodes:
            self._operator(node)

    def overwrite(self, place: int, name: str) -> None:
        type_ = self.function.get_type(name)
        value, storage = value_type(type_), storage_type(type_)
        self.lines.append(f"torch.overwrite.tensor.contents {self.values[name]} overwrites %out{place} : {value}, {storage}")

    def _read(self) -> Iterator[str]:
        for node in self.function.nodes:
            yield from node.uses
        yield from (value.name for value in self.function.outputs)

    def _literal(self, name: str, constant: Constant) -> None:
        attributes = f"{{torch.onnx.value = {_tensor(constant)}}}"
        self.lines.append(
            f'{self.bind(name)} = torch.operator "onnx.Constant"() {attributes} : () -> {value_type(constant.type)}'
        )

    def _operator(self, node: Node) -> None:
        operands = [self.values[name] if name else _LEFT_OUT for name in node.inputs]
        taken = [value_type(self.function.get_type(name)) if name else "!torch.none" for name in node.inputs]
        result_types = [value_type(self.function.get_type(name)) if name else "!torch.none" for name in node.outputs]
        results = [self.bind(name) if name else f"%unused{len(self.lines)}_{k}" for k, name in enumerate(node.outputs)]
        attributes = ", ".join(f"torch.onnx.{a.name} = {_attribute(a)}" for a in node.attributes)
        spelled = f" {{{attributes}}}" if attributes else ""
        signature = (
            f"({', '.join(taken)}) -> {result_types[0] if len(result_types) == 1 else '(' + ', '.join(result_types) + ')'}"
        )
        call = f'torch.operator "onnx.{node.op_type}"({", ".join(operands)}){spelled} : {signature}'
        self.lines.append(f"{', '.join(results)} = {call}" if results else call)


def _attribute(attribute: Attribute) -> str:
    write = _WRITERS.get(attribute.kind.element)
    if write is None:
        raise ValueError(f"attribute {attribute.name!r} is a {attribute.kind.name.lower()}, which cannot be written in this MLIR")
    return f"[{', '.join(map(write, attribute.value))}]" if attribute.kind.is_list else write(attribute.value)


def _float(value: float) -> str:
    """A float32 in hexadecimal, which is exact and can express infinities."""
    return f"0x{np.float32(value).view(np.uint32):08X} : f32"


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes) or not value.isascii() or not value.isprintable():
        raise ValueError(f"the attribute {value!r} is not plain text and cannot be written in this MLIR")
    return json.dumps(value)


def _tensor(constant: Constant) -> str:
    """A literal as hexadecimal bytes. Booleans are listed one by one, because MLIR packs their bytes to bits."""
    array, type_ = constant.array, literal_type(constant.type)
    if not array.size:
        return f"dense<> : {type_}"
    if constant.dtype is DType.BOOL:
        return f"dense<{json.dumps(array.tolist())}> : {type_}"
    return f'dense<"0x{array.tobytes().hex().upper()}"> : {type_}'


_WRITERS: Mapping[AttrKind, Callable[[Any], str]] = {
    AttrKind.FLOAT: _float,
    AttrKind.INT: lambda value: f"{value} : si64",
    AttrKind.STRING: _text,
    AttrKind.TENSOR: _tensor,
}
