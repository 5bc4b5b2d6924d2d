"""A Function as an engine wants it: the lowest opset and IR version at which every operator means the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, TensorProto

from xrt.errors import ModelError, OptionError
from xrt.formats.onnx.hoisting import hoist
from xrt.formats.onnx.normalize import identity_opset, normalize
from xrt.formats.onnx.opset_conversion import ConversionScope, check_convertible, convert_function
from xrt.formats.onnx.tensors import encode_data, external_tensor, write_tensor
from xrt.formats.onnx.versions import find_content_ir, lowest_ir, lowest_opsets, node_ir
from xrt.formats.onnx.writing import Style, write_model
from xrt.graph import Constant, DType, Function, Node, since_version

__all__ = [
    "EXTERNAL_BYTES",
    "EXTERNAL_LOCATION",
    "external_weights",
    "externalize_weights",
    "lowest_model",
    "lowest_opset",
    "why_not_downgradable",
]

EXTERNAL_BYTES = 1024
"""Constants of at least this size are written as references by ``weights="external"``."""

EXTERNAL_LOCATION = "weights"
"""The file that references name where the caller names none."""


def lowest_model(
    function: Function,
    max_opset: int | None = None,
    max_ir: int | None = None,
    weights: Literal["inline", "external"] = "inline",
    location: str = EXTERNAL_LOCATION,
    least_opset: int = 1,
) -> ModelProto:
    """Return the Function as a model at the lowest opset and IR version at which each operator means the same.

    A Relu of an opset 28 model is emitted at 14, where it took its present meaning. An operator newer than ``max_opset`` (of
    ai.onnx) is converted where onnx can. Docs, metadata, node devices and control edges are left out. What ONNX does not allow is
    corrected: an output listed twice, and a body that returns a value from outside, go through an Identity. Inputs and outputs
    keep their names and places.

    With ``weights="external"`` each large constant of the main graph becomes a reference to external data in the file
    ``location``, which is never written: `external_weights` gives the arrays by name, to be passed by reference. Those of bodies
    and Constant nodes stay inside; `externalize_weights` brings them to the main graph first.

    The opset is at least ``least_opset`` if the Function's own is: for libraries that add operators of that opset.

    Raises ModelError, whose text is the reason, when a limit cannot be kept.
    """
    if max_opset is not None:
        function = convert_function(function, max_opset)
    if max_ir is not None:
        _check_ir(find_content_ir(function), max_ir)
    opsets = lowest_opsets(function)
    function = normalize(function)
    opsets[""] = max(opsets[""], _identities(function), min(least_opset, function.opsets.get("", 1)))
    ir = lowest_ir(function, opsets, ceiling=max_ir)
    return write_model(function, opsets, ir, _style(weights, location))


def lowest_opset(node: Node, function: Function) -> int:
    """Return the lowest opset of ai.onnx at which the node, bodies included, means the same; 1 where it uses none."""
    return max((since_version(inner, holder) or 1 for holder, inner in _within(node, function) if not inner.domain), default=1)


def why_not_downgradable(node: Node, function: Function, max_opset: int | None = None, max_ir: int | None = None) -> str | None:
    """Return why `lowest_model` could not keep these limits for a Function with this node; None when it could.

    Never raises, and is quick: a conversion is tried once for each kind of node, and only for one that is too new. The
    types of the node's inputs are needed for that: infer shapes first.
    """
    try:
        if max_opset is not None and lowest_opset(node, function) > max_opset:
            check_convertible(node, ConversionScope((function,)), max_opset)
        if max_ir is not None:
            _check_ir(node_ir(node, function), max_ir)
    except ModelError as error:
        return str(error)
    return None


def _within(node: Node, function: Function) -> Iterator[tuple[Function, Node]]:
    """Yield the node and every node of its bodies, each with the Function that holds it."""
    yield function, node
    for body in node.bodies:
        yield from body.walk()


def _identities(function: Function) -> int:
    """Return the first opset whose Identity takes what the Identities in the Function, bodies included, copy."""
    types = (holder.get_type(node.outputs[0]) for holder, node in function.walk() if node.op == "Identity")
    return max(map(identity_opset, types), default=1)


def externalize_weights(function: Function) -> Function:
    """Return an equivalent Function whose large constants are all its own, and none a body's or a Constant node's."""
    return hoist(function, _is_large)


def external_weights(function: Function) -> dict[str, np.ndarray[Any, Any]]:
    """Return, by name, the arrays that ``lowest_model(function, weights="external")`` leaves out.

    They are the constants' own, but for types narrower than a byte: ONNX stores several of these in one, and so the array
    is a packed copy in bytes.
    """
    return {name: _stored(constant) for name, constant in function.constants.items() if _is_large(constant)}


def _stored(constant: Constant) -> np.ndarray[Any, Any]:
    return constant.array if constant.dtype.bits >= 8 else np.frombuffer(encode_data(constant), np.uint8)


def _is_large(constant: Constant) -> bool:
    """Whether a constant may be a reference; strings may not, as ONNX stores them unlike any array."""
    return constant.dtype is not DType.STRING and constant.nbytes >= EXTERNAL_BYTES


def _style(weights: str, location: str) -> Style:
    if weights == "inline":
        return Style(carries=False)
    if weights == "external":
        return Style(constants=partial(_reference, location), carries=False)
    raise OptionError(f"weights must be 'inline' or 'external'; got {weights!r}")


def _reference(location: str, constant: Constant, name: str) -> TensorProto:
    if not _is_large(constant):
        return write_tensor(constant, name)
    return external_tensor(constant, name, location, 0)


def _check_ir(need: tuple[int, str], max_ir: int) -> None:
    version, what = need
    if version > max_ir:
        raise ModelError(f"{what} needs IR version {version}; the limit is {max_ir}")
