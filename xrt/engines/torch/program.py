"""Compile a Function to a program: a list of steps, each of which runs a kernel on numbered slots.

Everything that does not depend on the inputs is computed when the program is built. A call copies the list of slots and runs one
loop over the steps, so threads may run one program concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from xrt.engines.kernels.table import Run
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.torch.dtypes import BIT_MASKS, make_from_numpy
from xrt.engines.torch.kernels import TorchKernelContext, ops
from xrt.engines.torch.namespace import TORCH
from xrt.engines.torch.opaque import make_opaque_kernel
from xrt.engines.torch.tables import MOVING_OPS
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Function, Node, TensorType
from xrt.graph.node import ATEN_DOMAIN
from xrt.operators import find_constant
from xrt.passes import find_decomposition

Step: TypeAlias = tuple[Run, tuple[int, ...], int | tuple[int, ...], tuple[int, ...]]
"""A kernel, the slots that it reads, the slot that it writes (a tuple for several outputs), and the slots to clear afterwards."""
UNUSED_SLOT = 0
"""Slot for outputs that no node reads."""
ABSENT_SLOT = 1
"""Slot for omitted inputs, which always contains None."""


@dataclass(frozen=True, slots=True)
class TensorProgram:
    """A list of steps, and the slots that they read and write."""

    name: str
    template: tuple[Any, ...]
    """Content of the slots at the start of a call: constants, and None in all other slots."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    nodes: tuple[Node, ...]
    """The node of each step."""
    constants: frozenset[int]
    """Memory addresses of constants, including those of bodies and decompositions."""
    packed_weights: list[torch.Tensor] = field(default_factory=list)
    """Copies of constants in another layout, which kernels have made, including those in bodies."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Compute the outputs, which may share memory with inputs, constants and each other."""
        slots = list(self.template)
        for slot, value in zip(self.inputs, inputs, strict=True):
            slots[slot] = value
        # Index of the running step, for the error message.
        index = 0
        try:
            for run, arguments, results, cleared in self.steps:
                result = run(*[slots[i] for i in arguments])
                if results.__class__ is int:
                    slots[results] = result
                else:
                    for slot, value in zip(results, result, strict=False):  # type: ignore[arg-type]  # a tuple, if not an int
                        slots[slot] = value
                for slot in cleared:
                    slots[slot] = None
                index += 1
        except (RunFailed, CompileRefused):
            raise
        except Exception as cause:
            node = self.nodes[index]
            raise RunFailed(
                f"torch failed at node {node.name!r} ({node.op}) of {self.name!r}: {summarize_error(cause)}"
            ) from cause
        return [slots[i] for i in self.outputs]


def make_program(function: Function, packed_weights: list[torch.Tensor] | None = None) -> TensorProgram:
    """Build the program of a Function without captures in linear time; raises CompileRefused for a node without a kernel.

    Kernels append the copies of constants that they make to ``packed_weights``.
    """
    # Slots 0 and 1 are `UNUSED_SLOT` and `ABSENT_SLOT`.
    slots = {name: i for i, name in enumerate(function.value_names(), start=2)}
    slots[""] = ABSENT_SLOT
    template: list[Any] = [None] * (len(slots) + 1)
    for name, constant in function.constants.items():
        template[slots[name]] = make_from_numpy(constant.dtype)(constant.array)
    constant_addresses = set(iter_addresses(template))
    packed: list[torch.Tensor] = [] if packed_weights is None else packed_weights

    def make_inner(inner: Function) -> TensorProgram:
        program = make_program(inner, packed)
        constant_addresses.update(program.constants)
        return program

    steps = []
    for node, last_uses in zip(function.nodes, _list_last_uses(function), strict=True):
        run = _make_kernel(TorchKernelContext(node, function, TORCH, make_inner, packed))
        # A Constant node returns the same tensor in each call.
        if node.op_type == "Constant":
            constant_addresses.update(iter_addresses([run()]))
        steps.append(_make_step(run, node, slots, last_uses))
    return TensorProgram(
        name=function.name,
        template=tuple(template),
        inputs=tuple(slots[value.name] for value in function.inputs),
        outputs=tuple(slots[value.name] for value in function.outputs),
        steps=tuple(steps),
        nodes=function.nodes,
        constants=frozenset(constant_addresses),
        packed_weights=packed,
    )


def iter_addresses(values: Sequence[Any]) -> Iterator[int]:
    """Yield the memory addresses of tensors, including those in lists. Other values are skipped."""
    for value in values:
        if isinstance(value, list):
            yield from iter_addresses(value)
        elif isinstance(value, torch.Tensor):
            yield value.untyped_storage().data_ptr()


def _list_last_uses(function: Function) -> list[list[str]]:
    """List for each node the values that no later node reads, so that their slots can be cleared. Takes linear time."""
    # Outputs and constants are never cleared.
    needed_later = {value.name for value in function.outputs} | set(function.constants)
    last_uses: list[list[str]] = []
    for node in reversed(function.nodes):
        names = dict.fromkeys((*node.uses, *node.defined_names))
        last_uses.append([name for name in names if name not in needed_later])
        needed_later.update(names)
    return last_uses[::-1]


def _make_step(run: Run, node: Node, slots: dict[str, int], last_uses: Sequence[str]) -> Step:
    """Make the step of a node. ``slots`` maps names of values to slots, ``last_uses`` are the values to clear afterwards."""
    arguments = tuple(slots[name] for name in (*node.inputs, *node.captures))
    results = tuple(slots[name] if name else UNUSED_SLOT for name in node.outputs)
    cleared = tuple(slots[name] for name in last_uses)
    target = results[0] if _has_single_output(node) else results
    return run, arguments, target, cleared


def _has_single_output(node: Node) -> bool:
    return len(node.outputs) == 1 and not node.bodies


def _make_kernel(ctx: TorchKernelContext) -> Run:
    """Make the kernel of a node. It returns the output of a node with a single output, and a tuple for other nodes."""
    node, function = ctx.node, ctx.function
    kernel = ops.find(node, function)
    if node.domain == ATEN_DOMAIN:
        run = make_opaque_kernel(ctx)
    elif isinstance(kernel, str):
        run = _decompose(ctx, kernel)
    else:
        run = _bind_constants(kernel.code(node, ctx), kernel.host, ctx)
        if not node.bodies and node.op_type not in MOVING_OPS:
            run = _truncate_results(run, [_find_mask(function, name) for name in node.outputs])
    return _select_first(run) if _has_single_output(node) else run


def _bind_constants(run: Run, host: Sequence[int], ctx: TorchKernelContext) -> Run:
    """Wrap a kernel to pass constants as NumPy arrays at the input indices ``host``, from which it reads axes or sizes."""
    values = {i: find_constant(name, ctx.function) for i, name in enumerate(ctx.node.inputs) if i in host}
    constants = {i: value.array for i, value in values.items() if value is not None}
    if not constants:
        return run

    def run_with_constants(*inputs: Any) -> Any:
        arguments = list(inputs)
        for i, array in constants.items():
            arguments[i] = array
        return run(*arguments)

    return run_with_constants


def _decompose(ctx: TorchKernelContext, reason: str) -> Run:
    """Make a kernel that computes the node's decomposition; raises CompileRefused with ``reason`` if none is known."""
    node = ctx.node
    decomposition = find_decomposition(node, ctx.function)
    if decomposition is None:
        raise CompileRefused(reason)
    program = ctx.compile(decomposition)
    # A decomposition calls its inputs i0, i1, ..., one for each distinct input of the node, and its outputs o0, o1, ...
    distinct_inputs = dict.fromkeys(filter(None, node.inputs))
    indices_by_name = {f"i{k}": node.inputs.index(name) for k, name in enumerate(distinct_inputs)}
    input_indices = [indices_by_name[value.name] for value in decomposition.inputs]

    def run(*inputs: Any) -> tuple[Any, ...]:
        results = program([inputs[i] for i in input_indices])
        by_name = {value.name: result for value, result in zip(decomposition.outputs, results, strict=True)}
        return tuple(by_name.get(f"o{k}") if name else None for k, name in enumerate(node.outputs))

    return run


def _select_first(run: Run) -> Run:
    """Wrap a kernel to return only the first output if it returns a tuple."""

    def run_first(*inputs: Any) -> Any:
        result = run(*inputs)
        return result[0] if result.__class__ is tuple else result

    return run_first


def _truncate_results(run: Run, masks: Sequence[int | None]) -> Run:
    """Wrap a kernel to mask the bits of its outputs. There is one mask per output; None leaves an output unchanged."""
    if not any(masks):
        return run

    def run_truncated(*inputs: Any) -> Any:
        result = run(*inputs)
        if result.__class__ is not tuple:
            return result & masks[0]  # the mask of a single output is not None here
        return tuple(value if mask is None else value & mask for value, mask in zip(result, masks, strict=False))

    return run_truncated


def _find_mask(function: Function, name: str) -> int | None:
    """Find the mask in `BIT_MASKS` for the type of a value; None if its type has none."""
    type_ = function.get_type(name) if name else None
    return BIT_MASKS.get(type_.dtype) if isinstance(type_, TensorType) else None
