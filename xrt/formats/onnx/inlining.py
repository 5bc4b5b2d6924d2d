"""Model-local functions, replaced by their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, inliner

from xrt.errors import ModelError
from xrt.formats.onnx.error_text import summarize_error
from xrt.formats.onnx.function_calls import Key, check_calls, make_call_key, nodes_inside

__all__ = ["inline"]

SMALL_BYTES = 1024
"""Size up to which an initialiser goes through the inliner with its data."""


def inline(model: ModelProto) -> ModelProto:
    """Return the model without model-local functions; the model itself where it has none.

    The inliner works on a serialised copy, so large initialisers are left out of what it is given. It forgets (as of onnx
    1.23) the defaults of a function's attributes and the domains that only functions import, so these are added first.
    Raises ModelError for a function that is recursive, or that needs another opset than the model and cannot be converted.
    """
    if not model.functions:
        return model
    check_calls(model)
    prepared = _without_weights(model)
    _add_defaults(prepared)
    _add_imports(prepared)
    try:
        inlined = inliner.inline_local_functions(prepared, convert_version=True)
    except Exception as error:  # the inliner raises whatever its C++ does; all of it is about this model
        raise ModelError(f"its model-local functions cannot be inlined: {summarize_error(error)}") from error
    if inlined.functions:
        names = ", ".join(f"{f.domain}.{f.name}" for f in inlined.functions)
        raise ModelError(f"its model-local functions {names} cannot be inlined: they import other opsets than the model")
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(model.graph.initializer)
    return inlined


def _without_weights(model: ModelProto) -> ModelProto:
    """Return a copy in which large initialisers have names, types and shapes only."""
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(map(_without_data, model.graph.initializer))
    return bare


def _without_data(tensor: TensorProto) -> TensorProto:
    if tensor.ByteSize() <= SMALL_BYTES:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _add_imports(model: ModelProto) -> None:
    """Add to the model, in place, the domains that only its functions import."""
    known = {entry.domain for entry in model.opset_import}
    for entry in (entry for function in model.functions for entry in function.opset_import):
        if entry.domain not in known:
            known.add(entry.domain)
            model.opset_import.append(entry)


def _add_defaults(model: ModelProto) -> None:
    """Add to each call of a local function, in place, the attributes that it leaves to their defaults."""
    defaults = {_key(function): tuple(function.attribute_proto) for function in model.functions if function.attribute_proto}
    if defaults:
        for nodes in (model.graph.node, *(function.node for function in model.functions)):
            for node in nodes_inside(nodes):
                _complete(node, defaults)


def _key(function: FunctionProto) -> Key:
    return function.domain, function.name, function.overload


def _complete(node: NodeProto, defaults: Mapping[Key, Sequence[AttributeProto]]) -> None:
    given = {attribute.name for attribute in node.attribute}
    missing = defaults.get(make_call_key(node), ())
    node.attribute.extend(attribute for attribute in missing if attribute.name not in given)
