"""Decide which nodes of a Function run on a device, and which values (sizes and shapes) stay on the host."""

from __future__ import annotations

from dataclasses import replace

from xrt.graph import Constant, DType, Function, MapType, Node, OptionalType, SequenceType, TensorType
from xrt.passes.contents import PROPAGATED

MAX_SHAPE_ELEMENTS = 64
"""A constant with more elements is not treated as a shape: NumPy supports at most 64 axes."""
SHAPE_OPS = frozenset({"Shape", "Size"})
"""Operators that read only the shape of their input, not its data."""
SHAPE_ARITHMETIC_OPS = PROPAGATED.difference(("ConstantOfShape", "Expand", "Tile")) | {"Sqrt"}
"""Operators with which models compute shapes from shapes. Not those that make tensors of such a shape."""


def find_shape_values(function: Function) -> frozenset[str]:
    """Find the names of shapes: results of Shape, Size and small Constant nodes, and values computed from them. Linear time."""
    shape_values: set[str] = set()
    for node in function.nodes:
        if not node.domain and _computes_sizes(node, function, shape_values):
            shape_values.update(node.defined_names)
    return frozenset(shape_values)


def _computes_sizes(node: Node, function: Function, shape_values: set[str]) -> bool:
    """Whether the results of a node are shapes. ``shape_values`` has the names of the shapes that earlier nodes compute."""
    if node.op_type in SHAPE_OPS:
        return True
    if node.op_type == "Constant":
        return all(_has_few_numbers(attribute.value) for attribute in node.attributes)
    inputs = [name for name in node.inputs if name]
    if node.op_type not in SHAPE_ARITHMETIC_OPS or shape_values.isdisjoint(inputs):
        return False
    return all(name in shape_values or _is_small(function.constants.get(name)) for name in inputs)


def _has_few_numbers(value: object) -> bool:
    """Whether the value of a Constant node's attribute is at most `MAX_SHAPE_ELEMENTS` numbers."""
    if isinstance(value, Constant):
        return _is_small(value)
    numbers = value if isinstance(value, tuple) else (value,)
    return len(numbers) <= MAX_SHAPE_ELEMENTS and all(isinstance(number, int | float) for number in numbers)


def _is_small(constant: Constant | None) -> bool:
    return constant is not None and constant.array.size <= MAX_SHAPE_ELEMENTS and constant.array.dtype.kind in "biuf"


CUPY_DTYPES = frozenset(
    [
        *(DType.BOOL, DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
        *(DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.COMPLEX64, DType.COMPLEX128),
    ]
)
"""Element types that CuPy supports."""


def plan_device_steps(function: Function, device: str) -> Function:
    """Assign every node to ``device``, except nodes inside bodies. An empty ``device`` leaves the Function unchanged."""
    if not device or all(node.device == device for node in function.nodes):
        return function
    return function.replace(nodes=tuple(replace(node, device=device) for node in function.nodes))


def why_not_on_device(node: Node, function: Function) -> str | None:
    """Explain why no kernel can run the node on its device: CuPy does not support its types. None for nodes on the CPU."""
    if node.device.partition(":")[0] in ("", "cpu"):
        return None
    for name in (*node.uses, *node.defined_names):
        element = function.get_type(name)
        while isinstance(element, SequenceType | OptionalType):
            element = element.element
        if isinstance(element, MapType):
            return f"value {name!r} is {function.get_type(name)}, and maps are stored on the host"
        dtype = element.dtype if isinstance(element, TensorType) else None
        if dtype is not None and dtype not in CUPY_DTYPES:
            return f"value {name!r} is {dtype}, which CuPy does not support"
        if dtype is DType.BFLOAT16 and node.op_type in ("TopK", "Unique"):
            return "CuPy does not sort bfloat16"
    return None
