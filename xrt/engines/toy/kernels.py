"""The kernels of the toy engine: the kernel table, and the context passed to each kernel factory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from xrt.engines.kernels import eager, numpy_only, ops as shared
from xrt.engines.kernels.namespace import ArrayNamespace
from xrt.engines.toolkit.node_query import CompiledBody, NodeInfo
from xrt.engines.toy.products import multiply
from xrt.graph import Function

ops = shared.extend("toy", eager, numpy_only)
"""All kernels of `xrt.engines.kernels`."""


@lru_cache(maxsize=1)
def _numpy() -> ArrayNamespace:
    return ArrayNamespace(np, multiply)


def namespace(module: Any) -> ArrayNamespace:
    """The array namespace of a module: NumPy's, with matrix products on the threads of a run, or that of a device's module."""
    return _numpy() if module is np else ArrayNamespace(module)


@dataclass(frozen=True, slots=True)
class KernelContext(NodeInfo):
    """A node and its context, as passed to the factory of its kernel."""

    module: Any
    """NumPy, or CuPy for a kernel on the device."""
    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Compiles a closed Function; `body` uses it for a node's bodies."""

    @property
    def xp(self) -> ArrayNamespace:
        """The namespace of array functions that kernels use."""
        return namespace(self.module)

    def body(self, attribute: str) -> CompiledBody:
        """The compiled body in an attribute."""
        return CompiledBody.compile(self, attribute, self.compile)
