"""How ONNX Runtime spells types, errors and itself."""

from __future__ import annotations

import re

import onnxruntime

from xrt.engines.toolkit.error_text import remove_noise, shorten
from xrt.graph import DType, OptionalType, SequenceType, TensorType, Type

__all__ = ["LIBRARY", "make_tensor_type", "plain_type", "summarize_error", "type_name"]

LIBRARY = f"ONNX Runtime {onnxruntime.__version__}"
"""The library as reasons and errors call it."""

_C_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
_PLAIN = {"float": "float32", "double": "float64"}
_TENSORS = {dtype: f"tensor({_C_NAMES.get(dtype, dtype)})" for dtype in DType}


def type_name(type_: Type) -> str:
    """Return the type as ONNX Runtime spells it, without its shape.

    >>> type_name(SequenceType(TensorType(DType.FLOAT32, (2, 3))))
    'seq(tensor(float))'
    """
    if isinstance(type_, TensorType):
        return _TENSORS[type_.dtype]
    if isinstance(type_, SequenceType):
        return f"seq({type_name(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({type_name(type_.element)})"
    key, value = (type_.key, type_.value)
    return f"map({_C_NAMES.get(key, key)},{type_name(value)})"


def make_tensor_type(name: str) -> TensorType | None:
    """Return the type that ONNX Runtime spells so, without its shape; None where it is not a tensor.

    >>> make_tensor_type("tensor(float)")
    TensorType(dtype=DType.FLOAT32, shape=None)
    """
    found = re.fullmatch(r"tensor\((\w+)\)", name)
    return TensorType(DType.parse(_PLAIN.get(found[1], found[1]))) if found else None


def plain_type(name: str) -> str:
    """Return ONNX Runtime's spelling of a type as XRT spells it.

    >>> plain_type("seq(tensor(float))")
    'seq(float32)'
    """
    return re.sub(r"tensor\((\w+)\)", lambda found: _PLAIN.get(found[1], found[1]), name)


_NOISE = (
    r"\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"Error in execution: ",
    r"Load model from .*? failed:",
    r"Exception during (?:loading|initialization): ",
    r"This is an invalid model\. ",
    r"Non-zero status code returned while running \w+ node\. Name:'[^']*' Status Message: ",
    r"\S*\.(?:cc|h):\d+ ",  # the source file of a check, and after it the check
    r"^.*::\S*\(.*\).* was false\. (?=\S)",
    r"^.*::<lambda\(\)> ",
    r"^[\w:*&<> ]*onnxruntime::[\w:~<>]+\([^)]*\)(?: const)?(?: \[with [^\]]*\])? ",  # the signature of what failed
)


def summarize_error(error: BaseException, limit: int = 300) -> str:
    """Return the sense of one of ONNX Runtime's errors: on one line, without codes, source files, signatures and stack traces.

    >>> summarize_error(RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation"))
    'Could not find an implementation'
    """
    return shorten(remove_noise(str(error).partition("\nStacktrace")[0], _NOISE), limit)
