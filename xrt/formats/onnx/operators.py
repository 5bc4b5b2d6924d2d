"""Which operators a model may use, at the opsets that it imports and with the installed ``onnx``."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from xrt.errors import ModelError
from xrt.formats.onnx.string_checks import check_texts
from xrt.graph import find_schema
from xrt.graph.op_schema import domain_title, latest_version, why_unknown

__all__ = ["OperatorRules"]


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
        check_texts((domain, op_type), f"the operator or domain of node {node}")
        if not op_type:
            raise ModelError(f"node {node} names no operator")
        version = self.opsets.get(domain)
        if version is None:
            imported = ", ".join(f"{domain_title(d)} {v}" for d, v in self.opsets.items()) or "none"
            raise ModelError(
                f"node {node} is of domain {domain_title(domain)}, whose opset the model does not import (it imports: {imported})"
            )
        newest = latest_version(domain)
        if newest:
            _check_version(domain_title(domain), version, newest)
            if find_schema(op_type, version, domain) is None:
                raise ModelError(f"node {node}: {why_unknown(op_type, version, domain)}")
        self.known.add((domain, op_type))


def _check_version(domain: str, version: int, newest: int) -> None:
    if version > newest:
        raise ModelError(
            f"it uses opset {version} of {domain}, but the installed onnx {onnx.__version__} knows {newest} at most; "
            "upgrade onnx, or export the model for an older opset"
        )
    if version < 1:
        raise ModelError(f"it uses opset {version} of {domain}; versions start at 1")
