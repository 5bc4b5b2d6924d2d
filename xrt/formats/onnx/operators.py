"""Which operators and opset versions the installed ``onnx`` knows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx
from onnx import defs

from xrt.errors import ModelError, did_you_mean
from xrt.graph import schema_of

__all__ = ["OperatorRules", "known_domains", "operator_versions"]


@lru_cache(maxsize=1)
def _versions() -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    """Map each domain that onnx describes to its operators, each to the versions at which its meaning changed."""
    found: dict[str, dict[str, list[int]]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault(schema.domain, {}).setdefault(schema.name, []).append(schema.since_version)
    return {domain: {op: tuple(sorted(v)) for op, v in ops.items()} for domain, ops in found.items()}


def known_domains() -> Mapping[str, int]:
    """Map each domain that the installed onnx describes to its newest version."""
    return {domain: max(max(v) for v in ops.values()) for domain, ops in _versions().items()} | {"": defs.onnx_opset_version()}


def operator_versions(domain: str, op_type: str) -> tuple[int, ...]:
    """Return the versions at which an operator's meaning changed, oldest first; empty where it is unknown."""
    return _versions().get(domain, {}).get(op_type, ())


class OperatorRules:
    """Whether a model's operators exist at the opsets that it imports."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.opsets = opsets
        self.known: set[tuple[str, str]] = set()
        """(domain, operator) pairs that have passed."""

    def check(self, domain: str, op_type: str, node: str) -> None:
        """Raise ModelError when the operator does not exist; operators of domains unknown to onnx are opaque and pass.

        ``node`` names the asking node in the error.
        """
        if not op_type:
            raise ModelError(f"node {node} has no operator")
        version = self.opsets.get(domain)
        shown = domain or "ai.onnx"
        if version is None:
            imported = ", ".join(repr(d or "ai.onnx") for d in self.opsets) or "none"
            raise ModelError(f"node {node} is of domain {shown!r}, which the model's opset imports lack (they are: {imported})")
        newest = known_domains().get(domain)
        if newest is not None:
            _check_version(shown, version, newest)
            if schema_of(op_type, version, domain) is None:
                raise _unknown(domain, op_type, version, node)
        self.known.add((domain, op_type))


def _check_version(domain: str, version: int, newest: int) -> None:
    if version > newest:
        raise ModelError(
            f"it uses opset {version} of {domain}, but the installed onnx {onnx.__version__} knows {newest} at most; "
            "upgrade onnx, or export the model for an older opset"
        )
    if version < 1:
        raise ModelError(f"it uses opset {version} of {domain}; versions start at 1")


def _unknown(domain: str, op_type: str, version: int, node: str) -> ModelError:
    versions = operator_versions(domain, op_type)
    where = f"opset {version} of {domain or 'ai.onnx'}"
    if versions:
        return ModelError(f"node {node}: {where} has no operator {op_type!r}; it is new in opset {versions[0]}")
    return ModelError(f"node {node}: {where} has no operator {op_type!r}.{did_you_mean(op_type, _versions()[domain])}")
