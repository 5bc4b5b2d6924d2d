"""Run one kernel by itself, on arrays: for the tests and benchmarks of kernel authors."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xrt.engines.native import abi
from xrt.engines.native.bindings import core
from xrt.engines.native.library import MessageBuffer, NativeKernel
from xrt.engines.native.marshalling import tensor_c
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

__all__ = ["run_kernel"]

Array = np.ndarray[Any, Any]


def run_kernel(
    kernel: NativeKernel,
    *inputs: Array | None,
    attributes: Mapping[str, Any] | None = None,
    opset: int | None = None,
    n_outputs: int = 1,
    constants: Sequence[int] = (),
    threads: int = 1,
) -> list[Array]:
    """Return the kernel's outputs for those arrays; None is an input that is left out.

    ``constants`` are the places of the inputs that the kernel is shown as constants of the model. Raises
    CompileRefused with the kernel's reason, RunFailed with what it says, or EngineUnavailable where XRT's own native
    library, which has the threads, was not built.
    """
    node, function = _function(kernel, inputs, attributes or {}, opset, n_outputs, constants)
    if reason := kernel.why_not(node, function):
        raise CompileRefused(f"{kernel}: {reason}")
    shown, said = kernel.show(node, function), MessageBuffer()
    outputs = (abi.OutputC * n_outputs)()
    plan = abi.PlanC(outputs=outputs)
    _check(kernel, kernel.structure.prepare(shown.structure, plan, said.structure), said, CompileRefused)
    try:
        made = [np.empty(o.shape[: o.ndim], abi.to_dlpack_dtype(o.dtype).numpy) for o in outputs]  # type: ignore[union-attr]
        _run(kernel, plan, inputs, made, threads, said)
    finally:
        if kernel.structure.destroy:
            kernel.structure.destroy(plan.state)
    return made


def _function(
    kernel: NativeKernel,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    opset: int | None,
    n_outputs: int,
    constants: Sequence[int],
) -> tuple[Node, Function]:
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    outputs = tuple(f"y{i}" for i in range(n_outputs))
    node = Node(kernel.op_type, names, outputs, read_attributes(attributes), kernel.domain, "alone")
    held = {names[i]: Constant(inputs[i]) for i in constants}  # type: ignore[arg-type]  # a constant is no left-out input
    types = [(n, x) for n, x in zip(names, inputs, strict=True) if x is not None and n not in held]
    values = tuple(Value(n, TensorType(DType.of(x), x.shape)) for n, x in types)
    version = opset or kernel.until or max(kernel.since, 1)
    return node, Function(values, tuple(map(Value, outputs)), (node,), held, {kernel.domain: version})


def _run(
    kernel: NativeKernel,
    plan: abi.PlanC,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array],
    threads: int,
    said: MessageBuffer,
) -> None:
    kept: list[Any] = []
    scratch = np.empty(plan.scratch + 64, np.uint8)
    call = abi.CallC(
        inputs=_tensors(inputs, kept),
        outputs=_tensors(outputs, kept),
        scratch=scratch.ctypes.data + -scratch.ctypes.data % 64 if plan.scratch else None,
        threads=threads,
    )
    _check(kernel, core().alone(kernel.structure, plan.state, call, said.structure), said, RunFailed)


def _tensors(arrays: Sequence[Array | None], kept: list[Any]) -> Any:
    left_out = abi.TensorC(device_type=1, ndim=-1, dtype=abi.DTypeC(0, 0, 1))
    kept += (contiguous := [None if a is None else np.require(a, requirements=["C", "A"]) for a in arrays])
    tensors = [left_out if a is None else tensor_c(DType.of(a), a.shape, a.ctypes.data, kept) for a in contiguous]
    kept.append(held := (abi.TensorC * len(tensors))(*tensors))
    return ctypes.cast(held, ctypes.POINTER(abi.TensorC))


def _check(kernel: NativeKernel, status: int, said: MessageBuffer, error: type[Exception]) -> None:
    if status != abi.OK:
        raise error(f"{kernel} failed: {said.text}")
