"""Running nodes on native kernels and on toy's Python kernels, side by side."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.engines.written import Array
from xrt.engines import native
from xrt.engines.native.fusion import DOMAIN, ELEMENTWISE, fuse_elementwise
from xrt.engines.toy import KernelContext
from xrt.engines.toy.kernels import get_namespace, ops
from xrt.engines.toy.tape import StepKernel, TapeBuilder
from xrt.graph import Function, Node

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38, 3e38, -3e38, 0.5, 1.5, 2.5, -2.5, 88.7, -88.7]


def numbers(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0, *, special: bool = False) -> Array:
    """Return seeded numbers of a shape; with ``special`` wider ones, and NaN, infinities and the like among floats."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype) == bool:
        return rng.integers(0, 2, shape).astype(bool)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(-9, 10, shape).astype(dtype)
    x = rng.standard_normal(shape) * (4 if special else 1)
    if special:
        flat = x.reshape(-1)
        places = rng.permutation(flat.size)[: len(SPECIAL)]
        flat[places] = SPECIAL[: places.size]
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(dtype))


def library() -> native.NativeLibrary:
    """Return the shipped library; a build that lacks it fails the test with the reason."""
    shipped = native.find_library()
    assert shipped is not None, native.why_not_shipped()
    return shipped


def on_python(function: Function, inputs: Sequence[Array]) -> list[Array]:
    """Return what toy's Python kernels compute."""

    def kernel_of(node: Node) -> StepKernel:
        kernel = ops.find(node, function)
        assert not isinstance(kernel, str), kernel
        return StepKernel(kernel.code(node, KernelContext(node, function, get_namespace(np), _no_bodies)))

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of the mean of nothing
        return TapeBuilder(function, kernel_of).build("toy").run(inputs)


def _no_bodies(function: Function) -> Any:
    raise AssertionError("no operator here has a body")


def on_native(function: Function, inputs: Sequence[Array]) -> list[Array]:
    """Return what native kernels compute, elementwise nodes in chains; every node must be served by one."""
    function = fuse_elementwise(function)
    values = {value.name: x for value, x in zip(function.inputs, inputs, strict=True)}
    values.update((name, constant.array) for name, constant in function.constants.items())
    for node in function.nodes:
        kernel = kernel_of(node, function)
        arrays = [values[name] if name else None for name in node.inputs]
        constant_places = [i for i, name in enumerate(node.inputs) if name in function.constants]
        attributes = {a.name: a for a in node.attributes}
        opset = function.opset(node.domain)
        count = len(node.outputs)
        outputs = native.run_kernel(
            kernel, *arrays, attributes=attributes, opset=opset, n_outputs=count, constants=constant_places
        )
        values.update(zip(node.outputs, outputs, strict=True))
    return [values[value.name] for value in function.outputs]


def kernel_of(node: Node, function: Function) -> native.NativeKernel:
    """Return the shipped kernel that is meant for the operator in the version that the Function declares."""
    version = function.opset(node.domain)
    for kernel in library().kernels:
        if (kernel.domain, kernel.op_type) == (node.domain, node.op_type) and kernel.since <= version <= (
            kernel.until or version
        ):
            return kernel
    raise AssertionError(f"no native kernel for {node.op}; {DOMAIN}.{ELEMENTWISE} may have refused it")


def ulps(actual: Array, expected: Array) -> Array:
    """Return by how many units in the last place floats differ; 0 where both are NaN, or both the same infinity."""
    exact = expected.astype(np.float64)
    with np.errstate(all="ignore"):
        spacing = np.spacing(np.abs(expected)).astype(np.float64)
        apart = np.abs(actual.astype(np.float64) - exact) / spacing
    same = (np.isnan(actual) & np.isnan(expected)) | (actual == expected)
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
