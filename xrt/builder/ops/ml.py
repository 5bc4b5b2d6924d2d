"""Every operator of ai.onnx.ml as a function on symbolic tensors; see `xrt.ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xrt.builder.ops.functions import find_function, list_names

__all__: list[str] = []


def __getattr__(name: str) -> Callable[..., Any]:
    return find_function(__name__, "ai.onnx.ml", name)


def __dir__() -> list[str]:
    return list(list_names("ai.onnx.ml"))
