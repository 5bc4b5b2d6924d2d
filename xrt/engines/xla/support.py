"""Decide whether XLA supports a node: by its operator and types, and by tracing the node."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp

from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, explain_disagreement, list_used_outputs, why_not_defined
from xrt.engines.xla.client import configure_tracing, get_client_device
from xrt.engines.xla.export import lower_function
from xrt.engines.xla.kernels import Operand
from xrt.engines.xla.tables import DTYPES, SMALL_DTYPE_OPS, SMALL_DTYPES
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Type


def why_not(node: Node, function: Function) -> str | None:
    return _SUPPORT.why_not(node, function)


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    """Explain why the type of an input or output is unsupported; None if it is supported. Tracing infers shapes of outputs."""
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and XLA supports only tensors"
    if type_.dtype not in DTYPES and not (type_.dtype in SMALL_DTYPES and node.op in SMALL_DTYPE_OPS):
        return f"{name!r} is {type_.dtype}, and this engine does not support {node.op} in that type"
    if not type_.is_static and name in node.uses:
        return f"the shape of {name!r} is not known before the run"
    return None


def _try_node(node: Node, function: Function) -> str | None:
    outputs = list_used_outputs(node, function)
    return _why_not_traceable(NodeQuery.from_node(node, function, outputs=outputs))


@lru_cache(maxsize=8192)
def _why_not_traceable(query: NodeQuery) -> str | None:
    """Explain why the node cannot be traced, or has other result types than ONNX declares; None if neither. Takes a few ms."""
    function = query.to_function()
    (node,) = function.nodes
    input_types = [value.type for value in function.inputs if isinstance(value.type, TensorType)]
    inputs = [jax.ShapeDtypeStruct(type_.shape, type_.dtype.numpy) for type_ in input_types]

    def trace(*operands: Operand) -> list[Operand]:
        return [jnp.asarray(result) for result in lower_function(function, operands, {})]

    try:
        # `eval_shape` only determines shapes and types.
        with configure_tracing(get_client_device(1)):
            results = jax.eval_shape(trace, *inputs)
    except CompileRefused as refused:
        return str(refused)
    except Exception as cause:  # noqa: BLE001  # any error of JAX is the reason
        return f"XLA does not support this {node.op}: {summarize_error(cause)}"
    result_types = [TensorType(DType.from_array(result), result.shape) for result in results]
    return explain_disagreement("XLA", node.op, result_types, query.required_types)


_SUPPORT = LibrarySupport(
    operator=(why_not_defined,), why_not_type=_why_not_type, known_types="inputs", tables=(), query=_try_node
)
