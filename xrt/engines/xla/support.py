"""Why XLA does not support a node: explicit rules, then a trial trace of the single node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from xrt.engines.xla.client import configure_tracing, get_client_device, summarize_error
from xrt.engines.xla.export import is_known, lower
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Type, since_version
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.engines.xla.kernels import Operand


_FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
_INTEGERS = {DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
DTYPES = _FLOATS | _INTEGERS | {DType.BOOL}

_SMALL_FLOATS = {DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ, DType.FLOAT4E2M1}
SMALL = _SMALL_FLOATS | {DType.INT4, DType.UINT4, DType.INT2, DType.UINT2}
"""Types that only the operators in `TAKING_SMALL` support."""
TAKING_SMALL = frozenset(
    {
        *("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Constant", "Identity"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice"),
    }
)


def why_not(node: Node, function: Function) -> str | None:
    """Explain why XLA does not support the node in isolation; None if it does."""
    if since_version(node, function) is None:
        return f"{node.op} is not an operator of opset {function.opsets.get(node.domain)}"
    used = [name for name in node.outputs if name and _is_used(name, function)]
    for name in (*node.uses, *used):
        if reason := _type_refusal(node, name, function.get_type(name), produced=name in used):
            return reason
    return _check_conversion(_question(node, function, tuple(used)))


def _is_used(name: str, function: Function) -> bool:
    return bool(function.users(name)) or any(v.name == name for v in function.outputs)


def _type_refusal(node: Node, name: str, type_: Type | None, *, produced: bool) -> str | None:
    if type_ is None:
        return None if produced else f"the type of {name!r} is not known before the run"
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and XLA takes tensors only"
    if type_.dtype not in DTYPES and not (type_.dtype in SMALL and node.op in TAKING_SMALL):
        return f"{name!r} is {type_.dtype}, in which this engine does not compute {node.op}"
    if not produced and not type_.is_static:
        return f"the shape of {name!r} is not known before the run"
    return None


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """The properties of a node that determine whether XLA supports it; the cache key of the trial trace."""

    node: Node
    opsets: tuple[tuple[str, int], ...]
    given: tuple[tuple[str, TensorType | Constant], ...]
    """The values that the node reads: known constants with their elements, others as types."""
    wanted: tuple[tuple[str, Type | None], ...]
    """The outputs that are used, with their declared types."""


def _question(node: Node, function: Function, used: tuple[str, ...]) -> TraceQuery:
    plain = replace(node, name="", control=(), device="")
    short = {} if node.bodies else {name: f"v{i}" for i, name in enumerate(dict.fromkeys((*node.uses, *node.defines)))}
    if short:
        inputs, outputs = (tuple(short.get(name, "") for name in names) for names in (node.inputs, node.outputs))
        plain = replace(plain, inputs=inputs, outputs=outputs)
    given = tuple((short.get(name, name), _given(name, function)) for name in dict.fromkeys(node.uses))
    wanted = tuple((short.get(name, name), function.get_type(name)) for name in used)
    return TraceQuery(plain, tuple(sorted(function.opsets.items())), given, wanted)


def _given(name: str, function: Function) -> TensorType | Constant:
    producer = function.producer(name)
    constant = function.constants.get(name) if producer is None else find_constant(producer, function)
    if constant is not None and is_known(constant):
        return constant
    type_ = function.get_type(name)
    assert isinstance(type_, TensorType)  # checked by `_type_refusal`
    return type_


@lru_cache(maxsize=8192)
def _check_conversion(question: TraceQuery) -> str | None:
    """Trace the single node, which takes a few milliseconds, and compare the types that JAX and ONNX infer."""
    function = Function((), (), (question.node,), opsets=dict(question.opsets))
    try:
        with configure_tracing(get_client_device(1)):
            results = _results(function, question)
    except CompileRefused as refused:
        return str(refused)
    except Exception as cause:  # noqa: BLE001  # any error of JAX is the reason
        return f"XLA cannot take this {question.node.op}: {summarize_error(cause)}"
    reasons = (_disagreement(question.node.op, results[name], want) for name, want in question.wanted)
    return next((reason for reason in reasons if reason), None)


def _results(function: Function, question: TraceQuery) -> dict[str, Any]:
    """Trace the node; return shape and dtype of each used output by name."""
    names = [name for name, _ in question.wanted]
    known = {name: given.array for name, given in question.given if isinstance(given, Constant)}
    traced = {
        name: jax.ShapeDtypeStruct(given.shape, given.dtype.numpy)
        for name, given in question.given
        if isinstance(given, TensorType)
    }
    asked = function.replace(outputs=tuple(function.value(name) for name in names))
    results = jax.eval_shape(partial(_traced, asked, known), traced)
    return dict(zip(names, results, strict=True))


def _traced(function: Function, known: dict[str, Operand], given: dict[str, Operand]) -> list[Operand]:
    return [jnp.asarray(result) for result in lower(function, [], {**known, **given})]


def _disagreement(op: str, got: Any, want: Type | None) -> str | None:
    if not isinstance(want, TensorType) or _agrees(got, want):
        return None
    return f"XLA takes the result of this {op} for {DType.of(got)}{list(got.shape)}, where ONNX says {want}"


def _agrees(got: Any, want: TensorType) -> bool:
    if got.dtype != want.dtype.numpy or want.shape is None:
        return bool(got.dtype == want.dtype.numpy)
    return len(got.shape) == len(want.shape) and all(
        not isinstance(w, int) or g == w for g, w in zip(got.shape, want.shape, strict=True)
    )
