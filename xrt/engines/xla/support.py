"""Decide whether XLA supports a node: by its operator and types, and by tracing the node."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp

from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, explain_disagreement, list_used_outputs, why_not_defined
from xrt.engines.xla.client import configure_tracing, get_client_device, summarize_error
from xrt.engines.xla.export import lower_function
from xrt.engines.xla.kernels import MAX_KNOWN_ELEMENTS
from xrt.engines.xla.tables import DTYPES, SMALL_DTYPE_OPS, SMALL_DTYPES
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Type


def why_not(node: Node, function: Function) -> str | None:
    """Explain why XLA does not support the node in isolation; None if it does."""
    return _SUPPORT.why_not(node, function)


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and XLA supports only tensors"
    if type_.dtype not in DTYPES and not (type_.dtype in SMALL_DTYPES and node.op in SMALL_DTYPE_OPS):
        return f"{name!r} is {type_.dtype}, and this engine does not support {node.op} in that type"
    return None if type_.is_static or name not in node.uses else f"the shape of {name!r} is not known before the run"


def _try_node(node: Node, function: Function) -> str | None:
    return _why_not_traceable(
        NodeQuery.from_node(node, function, limit=MAX_KNOWN_ELEMENTS, outputs=list_used_outputs(node, function))
    )


@lru_cache(maxsize=8192)
def _why_not_traceable(query: NodeQuery) -> str | None:
    """Trace the node, in a few ms. Explain why that fails or results in other types than ONNX declares; or return None."""
    function = query.to_function()
    (node,) = function.nodes
    inputs = [jax.ShapeDtypeStruct(v.type.shape, v.type.dtype.numpy) for v in function.inputs if isinstance(v.type, TensorType)]
    try:
        # `eval_shape` only determines shapes and types.
        with configure_tracing(get_client_device(1)):
            results = jax.eval_shape(lambda *operands: [jnp.asarray(x) for x in lower_function(function, operands, {})], *inputs)
    except CompileRefused as refused:
        return str(refused)
    except Exception as cause:  # noqa: BLE001  # any error of JAX is the reason
        return f"XLA does not support this {node.op}: {summarize_error(cause)}"
    return explain_disagreement("XLA", node.op, [TensorType(DType.from_array(x), x.shape) for x in results], query.required_types)


_SUPPORT = LibrarySupport(
    operator=(why_not_defined,), why_not_type=_why_not_type, known_types="inputs", tables=(), query=_try_node
)
