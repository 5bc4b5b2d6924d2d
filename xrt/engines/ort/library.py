"""What ONNX Runtime says of itself: its kernels, its operator schemas, the newest opset and IR version it reads.

Nothing here knows a node; `capability` asks. Everything is read from the library once, when first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onnxruntime import get_available_providers
from onnxruntime.capi import onnxruntime_pybind11_state as native

from xrt.engines.ort.session import ExportedModel, why_not_opened
from xrt.formats.onnx import lowest_model
from xrt.graph import DType, Function, Node, TensorType, Value, latest_opset

__all__ = ["OrtKernelDef", "OrtParameter", "OrtSchema", "kernels", "newest_ir", "newest_opset", "schema"]

_NO_END = 2**31 - 1
_TRIVIAL_OPSET = 14


@dataclass(frozen=True, slots=True)
class OrtKernelDef:
    """One implementation of an operator by an execution provider."""

    provider: str
    since: int
    until: int | None
    """The last version of the operator that it serves; None: it serves `since` alone, until the operator changes again."""
    types: Mapping[str, frozenset[str]]
    """Allowed types by the name of a type constraint, or of an input."""

    def serves(self, version: int) -> bool:
        """Whether it serves the operator as of the version at which it took its meaning (the library's own rule)."""
        return self.since == version or (self.until is not None and self.since <= version <= self.until)


@dataclass(frozen=True, slots=True)
class OrtParameter:
    """A formal input or output of an operator."""

    name: str
    constraint: str
    """The name of its type constraint, or a type."""


@dataclass(frozen=True, slots=True)
class OrtSchema:
    """An operator as ONNX Runtime knows it."""

    since: int
    deprecated: bool
    inputs: tuple[OrtParameter, ...]
    outputs: tuple[OrtParameter, ...]
    attributes: frozenset[str]


_LISTED = frozenset({"CPUExecutionProvider", "AzureExecutionProvider"})
"""Providers of builds whose kernels can be listed."""


@lru_cache(maxsize=1)
def _all_kernels() -> Mapping[tuple[str, str], tuple[OrtKernelDef, ...]]:
    """Return all kernels; none in a build with providers in libraries of their own, where sessions are tried instead.

    There the library ends the process when it is asked and one of those does not load (onnxruntime-gpu 1.31 without cuBLAS).
    """
    if set(get_available_providers()) - _LISTED:
        return {}
    found: dict[tuple[str, str], list[OrtKernelDef]] = {}
    for definition in native.get_all_opkernel_def():
        since, until = definition.version_range
        types = {name: frozenset(allowed) for name, allowed in definition.type_constraints.items()}
        kernel = OrtKernelDef(definition.provider, since, None if until == _NO_END else until, types)
        found.setdefault((definition.domain, definition.op_name), []).append(kernel)
    return {key: tuple(kernels) for key, kernels in found.items()}


@lru_cache(maxsize=1)
def _all_schemas() -> Mapping[tuple[str, str], tuple[OrtSchema, ...]]:
    found: dict[tuple[str, str], list[OrtSchema]] = {}
    for known in native.get_all_operator_schema():
        formals = _formals(known.inputs), _formals(known.outputs)
        one = OrtSchema(known.since_version, known.deprecated, *formals, frozenset(known.attributes))
        found.setdefault((known.domain, known.name), []).append(one)
    return {key: tuple(sorted(schemas, key=lambda s: -s.since)) for key, schemas in found.items()}


def _formals(parameters: Iterable[Any]) -> tuple[OrtParameter, ...]:
    return tuple(OrtParameter(p.name, p.typeStr) for p in parameters)


def kernels(domain: str, op_type: str) -> tuple[OrtKernelDef, ...]:
    """Return every kernel for the operator, of whichever provider and version."""
    return _all_kernels().get((domain, op_type), ())


def schema(domain: str, op_type: str, version: int) -> OrtSchema | None:
    """Return the operator's schema in force at an opset version; None where the library does not know the operator."""
    return next((s for s in _all_schemas().get((domain, op_type), ()) if s.since <= version), None)


@lru_cache(maxsize=1)
def newest_opset() -> int:
    """Return the newest version of ai.onnx that a model may declare, found by trying."""
    return next((version for version in range(latest_opset(), _TRIVIAL_OPSET, -1) if _reads(opset=version)), _TRIVIAL_OPSET)


@lru_cache(maxsize=1)
def newest_ir() -> int:
    """Return the newest IR version that a model may declare, found by trying."""
    ir = _trivial_model().ir_version
    return max(version for version in range(ir, ir + 32) if version == ir or _reads(ir=version))


def _trivial_model() -> Any:
    value = TensorType(DType.FLOAT32, (1,))
    node = Node("Relu", ("x",), ("y",))
    return lowest_model(Function((Value("x", value),), (Value("y", value),), (node,), opsets={"": _TRIVIAL_OPSET}))


def _reads(opset: int | None = None, ir: int | None = None) -> bool:
    model = _trivial_model()
    if opset is not None:
        model.opset_import[0].version = opset
    if ir is not None:
        model.ir_version = ir
    return why_not_opened(ExportedModel(model.SerializeToString()), ["CPUExecutionProvider"]) is None
