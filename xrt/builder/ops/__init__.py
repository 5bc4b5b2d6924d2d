"""Every operator of ai.onnx as a function on symbolic tensors, made from the schemas of the installed ``onnx``.

``xrt.ops.Relu(x)`` records a node in the graph that is being traced and returns its output. Inputs go in their places (or
by their names), None where an optional one is left out; attributes are keywords. ``outputs=n`` asks for n outputs, always as
a tuple; ``name=`` names the node and its first output. `xrt.ops.ml` holds the operators of ai.onnx.ml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xrt.builder.ops import ml
from xrt.builder.ops.functions import find, names
from xrt.builder.record_op import apply, apply_opaque
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
    """Apply an operator of any domain: an opaque node where ``onnx`` does not describe the domain.

    ``version`` is the domain's opset version that the graph imports, ``types`` the types of the outputs, one each. Only an
    engine that knows the domain takes such a node. For a domain that ``onnx`` describes, both are read from its schema.
    """
    if latest_version(domain):
        return apply(op_type, inputs, attributes, domain=domain, name=name)
    return apply_opaque(op_type, inputs, attributes, domain=domain, version=version, types=types, name=name)


def __getattr__(name: str) -> Callable[..., Any]:
    return find(__name__, "", name)


def __dir__() -> list[str]:
    return sorted((*names(""), "custom", "ml"))
