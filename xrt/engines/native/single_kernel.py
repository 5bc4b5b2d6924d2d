"""Run a single kernel on arrays, for tests and benchmarks of kernel authors."""

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
    """Run a kernel on arrays; None stands for an omitted input.

    ``constants`` lists the positions of inputs that the kernel sees as constants. Raises CompileRefused with the kernel's reason,
    RunFailed with its message, or EngineUnavailable if XRT's own native library, which has the threads, was not built.
    """
    node, function = _make_function(kernel, inputs, attributes or {}, opset, n_outputs, constants)
    if reason := kernel.why_not(node, function):
        raise CompileRefused(f"{kernel}: {reason}")
    node_c, message = kernel.show(node, function), MessageBuffer()
    outputs = (abi.OutputC * n_outputs)()
    plan = abi.PlanC(outputs=outputs)
    _check(kernel, kernel.structure.prepare(node_c.structure, plan, message.structure), message, CompileRefused)
    try:
        results = [np.empty(o.shape[: o.ndim], abi.decode_dtype(o.dtype).numpy) for o in outputs]  # type: ignore[union-attr]
        _run(kernel, plan, inputs, results, threads, message)
    finally:
        if kernel.structure.destroy:
            kernel.structure.destroy(plan.state)
    return results


def _make_function(
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
    values_by_name = {names[i]: Constant(inputs[i]) for i in constants}  # type: ignore[arg-type]  # a constant is not omitted
    types = [(n, x) for n, x in zip(names, inputs, strict=True) if x is not None and n not in values_by_name]
    values = tuple(Value(n, TensorType(DType.of(x), x.shape)) for n, x in types)
    version = opset or kernel.until or max(kernel.since, 1)
    return node, Function(values, tuple(map(Value, outputs)), (node,), values_by_name, {kernel.domain: version})


def _run(
    kernel: NativeKernel,
    plan: abi.PlanC,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array],
    threads: int,
    message: MessageBuffer,
) -> None:
    owned: list[Any] = []
    # Scratch space is aligned to a cache line, as in a tape.
    scratch = np.empty(plan.scratch + 64, np.uint8)
    call = abi.CallC(
        inputs=_make_tensors(inputs, owned),
        outputs=_make_tensors(outputs, owned),
        scratch=scratch.ctypes.data + -scratch.ctypes.data % 64 if plan.scratch else None,
        threads=threads,
    )
    _check(kernel, core().alone(kernel.structure, plan.state, call, message.structure), message, RunFailed)


def _make_tensors(arrays: Sequence[Array | None], owned: list[Any]) -> Any:
    left_out = abi.TensorC(device_type=1, ndim=-1, dtype=abi.DTypeC(0, 0, 1))
    owned += (contiguous := [None if a is None else np.require(a, requirements=["C", "A"]) for a in arrays])
    tensors = [left_out if a is None else tensor_c(DType.of(a), a.shape, a.ctypes.data, owned) for a in contiguous]
    owned.append(items := (abi.TensorC * len(tensors))(*tensors))
    return ctypes.cast(items, ctypes.POINTER(abi.TensorC))


def _check(kernel: NativeKernel, status: int, message: MessageBuffer, error: type[Exception]) -> None:
    if status != abi.OK:
        raise error(f"{kernel} failed: {message.text}")
