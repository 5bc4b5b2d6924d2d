"""Run rare operators, for which toy has no kernel, with `onnx.reference`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.formats.onnx import to_model
from xrt.graph import Constant, FrozenDict, Function, Node, find_schema

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext, Run

_LOADER_MODULES = {
    "": "onnx.reference.ops",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview": "onnx.reference.ops.aionnx_preview",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}
"""Domain to the module with its reference implementations. They are imported on first use, because the import takes 0.1 s, and
most uses of toy, such as folding constants, do not need them."""
DOMAINS = frozenset(_LOADER_MODULES)
"""The domains whose operators the onnx package defines."""
_REQUIRED_PACKAGES = {("", "ImageDecoder"): ("PIL", "pillow")}
"""Operator to the package that its reference implementation needs in addition to NumPy: the module, and the name to install."""


def why_not(node: Node, function: Function) -> str | None:
    """Explain why the reference implementation does not support the node; None if it does."""
    if node.device.partition(":")[0] not in ("", "cpu"):
        return f"the reference operators run on cpu, not on {node.device}"
    return why_not_implemented(node.domain, node.op_type, function.opset(node.domain))


@lru_cache(maxsize=1024)
def why_not_implemented(domain: str, op_type: str, version: int) -> str | None:
    """Explain why `onnx.reference` cannot run this version of an operator; None if it can."""
    module, distribution = _REQUIRED_PACKAGES.get((domain, op_type), ("", ""))
    if module and find_spec(module) is None:
        return (
            f"the reference implementation of {op_type} needs {distribution}, which is not installed: pip install {distribution}"
        )
    schema = find_schema(op_type, version, domain)
    # The evaluator runs the function body of an operator that has one.
    if schema is not None and (schema.has_function or schema.has_context_dependent_function) and not domain:
        return None
    loader = _LOADER_MODULES.get(domain)
    if loader is None:
        return f"neither toy nor onnx.reference has operators of domain {domain!r}"
    try:
        import_module(loader).load_op(domain, op_type, version)
    except Exception as error:  # noqa: BLE001  # loaders raise RuntimeError, NotImplementedError, ValueError and others
        return f"neither toy nor onnx.reference implements {op_type} in version {version}: {str(error).splitlines()[0]}"
    return None


def make_reference_kernel(node: Node, ctx: NodeContext) -> Run:
    """Make a kernel that runs the node as a one-node model in `onnx.reference.ReferenceEvaluator`.

    Each thread has a separate evaluator, because some operators keep state in their objects.
    """
    from onnx.reference import ReferenceEvaluator  # imported on use because the import is slow

    model = to_model(isolate_node(node, ctx.function))
    names = (*node.inputs, *node.captures)
    local = threading.local()
    # Create an evaluator here, so that an error is raised at compile time.
    local.evaluator = ReferenceEvaluator(model)

    def run(*values: Any) -> tuple[Any, ...]:
        if not hasattr(local, "evaluator"):
            local.evaluator = ReferenceEvaluator(model)
        feed = {name: value for name, value in zip(names, values, strict=True) if name}
        # The evaluator returns only the outputs that have a name.
        results = iter(local.evaluator.run(None, feed))
        return tuple(_convert_result(next(results)) if name else None for name in node.outputs)

    return run


def isolate_node(node: Node, function: Function, constants: Mapping[str, Constant] = FrozenDict()) -> Function:
    """Make a Function of one node. The values that it uses are inputs, except those in ``constants``."""
    return Function(
        inputs=tuple(function.value(name) for name in dict.fromkeys(node.uses) if name not in constants),
        outputs=tuple(function.value(name) for name in node.defined_names),
        nodes=(replace(node, control=()),),
        constants={name: constants[name] for name in node.uses if name in constants},
        opsets=function.opsets,
        name=node.name,
    )


def _convert_result(value: Any) -> Any:
    """Convert a result of the reference to XRT's representation: strings are object arrays, and scalars are 0-d arrays."""
    if isinstance(value, list):
        return [_convert_result(item) for item in value]
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array
