"""Every ai.onnx operator as a function on symbolic tensors, generated from the schemas of the installed ``onnx``.

``xrt.ops.Relu(x)`` records a node in the graph being traced and returns its output. Pass inputs by position or by name, and
None for an omitted optional input; attributes are keywords. ``outputs=n`` requests n outputs, always as a tuple; ``name=``
names the node and its first output. `xrt.ops.ml` contains the operators of ai.onnx.ml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xrt.builder.ops import ml
from xrt.builder.ops.functions import find_function, list_names
from xrt.builder.record_op import apply, get_builder
from xrt.graph.node import read_attributes
from xrt.graph.schemas import latest_version

if TYPE_CHECKING:
    from xrt.builder import Operand, Tensor
    from xrt.graph.types import Type

__all__ = ["custom", "ml"]


def custom(
    op_type: str,
    *inputs: Operand | None,
    domain: str,
    version: int = 1,
    types: Sequence[Type | None] = (None,),
    name: str | None = None,
    **attributes: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Apply an operator of any domain. If ``onnx`` does not describe the domain, only engines that implement it support the node.

    ``version`` is the opset version of the domain, and ``types`` has a type for each output. Both are ignored for a domain that
    ``onnx`` describes, because they follow from the schema.
    """
    if latest_version(domain):
        return apply(op_type, inputs, attributes, domain=domain, name=name)
    builder = get_builder(f"xrt.ops.custom({op_type!r})")
    builder.import_domain(domain, version)
    tensors = [None if item is None else builder.symbol(item) for item in inputs]
    node_attributes = read_attributes({key: value for key, value in attributes.items() if value is not None})
    labels = [str(number) for number in range(1, len(types) + 1)]
    node = builder.new_node(op_type, tensors, len(types), node_attributes, domain=domain, name=name, labels=labels)
    results = builder.record(node, types)
    return results[0] if len(results) == 1 else results


def __getattr__(name: str) -> Callable[..., Any]:
    function = globals()[name] = find_function(__name__, "", name)  # later reads do not call __getattr__
    return function


def __dir__() -> list[str]:
    return sorted((*list_names(""), "custom", "ml"))
