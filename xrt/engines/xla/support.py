"""Why XLA does not support a node: explicit rules, then a trial trace of the single node."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp

from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, explain_disagreement, list_used_outputs, why_not_defined
from xrt.engines.xla.client import configure_tracing, get_client_device, summarize_error
from xrt.engines.xla.export import KNOWN, lower
from xrt.engines.xla.tables import DTYPES, SMALL, TAKING_SMALL
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Type


def why_not(node: Node, function: Function) -> str | None:
    """Explain why XLA does not support the node in isolation; None if it does."""
    return _SUPPORT.why_not(node, function)


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and XLA takes tensors only"
    if type_.dtype not in DTYPES and not (type_.dtype in SMALL and node.op in TAKING_SMALL):
        return f"{name!r} is {type_.dtype}, in which this engine does not compute {node.op}"
    return None if type_.is_static or name not in node.uses else f"the shape of {name!r} is not known before the run"


def _answer(node: Node, function: Function) -> str | None:
    return _check_conversion(NodeQuery.of(node, function, limit=KNOWN, outputs=list_used_outputs(node, function)))


@lru_cache(maxsize=8192)
def _check_conversion(query: NodeQuery) -> str | None:
    """Trace the single node, which takes a few milliseconds, and compare the types that JAX and ONNX infer."""
    function = query.to_function()
    (node,) = function.nodes
    inputs = [jax.ShapeDtypeStruct(v.type.shape, v.type.dtype.numpy) for v in function.inputs if isinstance(v.type, TensorType)]
    try:
        # Only shapes and types: nothing is compiled or computed.
        with configure_tracing(get_client_device(1)):
            results = jax.eval_shape(lambda *operands: [jnp.asarray(x) for x in lower(function, operands, {})], *inputs)
    except CompileRefused as refused:
        return str(refused)
    except Exception as cause:  # noqa: BLE001  # any error of JAX is the reason
        return f"XLA cannot take this {node.op}: {summarize_error(cause)}"
    return explain_disagreement("XLA", node.op, [TensorType(DType.of(x), x.shape) for x in results], query.required_types)


_SUPPORT = LibrarySupport(operator=(why_not_defined,), why_not_type=_why_not_type, typed="inputs", tables=(), answer=_answer)
