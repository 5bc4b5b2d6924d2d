"""A Function as a list of kernels: a table of slots, and steps that read and write them.

Everything that does not depend on a call is computed when the program is built. A call is a new list of slots and one loop, so
threads may run one program concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from xrt.engines.kernels.table import Run
from xrt.engines.torch.dtypes import MASKS, from_numpy, summarize_error
from xrt.engines.torch.kernels import TorchKernelContext, find_constant_input, ops
from xrt.engines.torch.namespace import TORCH
from xrt.engines.torch.opaque import make_opaque_kernel
from xrt.engines.torch.tables import MOVING
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Function, Node, TensorType
from xrt.graph.node import DOMAIN
from xrt.passes import find_decomposition

Step: TypeAlias = tuple[Run, tuple[int, ...], int | tuple[int, ...], tuple[int, ...]]
"""A kernel, the slots it reads, the slot or slots it writes, and the slots that are dead afterwards."""
UNWANTED = 0
"""Slot of outputs without readers."""
ABSENT = 1
"""Slot of omitted inputs: always None."""


@dataclass(frozen=True, slots=True)
class TensorProgram:
    """Steps over a table of slots."""

    name: str
    template: tuple[Any, ...]
    """Initial content of the slots: constants, and None."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    nodes: tuple[Node, ...]
    """Each step's node."""
    constants: frozenset[int]
    """Addresses of constants, including those in bodies and decompositions."""
    packed_weights: list[torch.Tensor] = field(default_factory=list)
    """Copies of constants made by kernels, including those in bodies."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Compute the outputs, which may share memory with inputs, constants and each other."""
        slots = list(self.template)
        for slot, value in zip(self.inputs, inputs, strict=True):
            slots[slot] = value
        # The index of the step that runs, for the error message.
        index = 0
        try:
            for run, arguments, results, dead in self.steps:
                result = run(*[slots[i] for i in arguments])
                if results.__class__ is int:
                    slots[results] = result
                else:
                    for slot, value in zip(results, result, strict=False):  # type: ignore[arg-type]  # a tuple, if not an int
                        slots[slot] = value
                for slot in dead:
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


def make_program(function: Function, packed: list[torch.Tensor] | None = None) -> TensorProgram:
    """Build the program of a closed Function in linear time; raises CompileRefused for a node without a kernel."""
    # Slots 0 and 1 are `UNWANTED` and `ABSENT`.
    slots = {name: i for i, name in enumerate(function.value_names(), start=2)}
    slots[""] = ABSENT
    template: list[Any] = [None] * (len(slots) + 1)
    for name, constant in function.constants.items():
        template[slots[name]] = from_numpy(constant.dtype)(constant.array)
    shared = set(find_addresses(template))
    copies: list[torch.Tensor] = [] if packed is None else packed

    def make_inner(inner: Function) -> TensorProgram:
        program = make_program(inner, copies)
        shared.update(program.constants)
        return program

    steps = []
    for node, dead in zip(function.nodes, _list_last_uses(function), strict=True):
        run = _make_kernel(TorchKernelContext(node, function, TORCH, make_inner, copies))
        # A result must not share the memory of a constant node's tensor either.
        if node.op_type == "Constant":
            shared.update(find_addresses([run()]))
        steps.append(_make_step(run, node, slots, dead))
    inputs, outputs = (tuple(slots[value.name] for value in values) for values in (function.inputs, function.outputs))
    return TensorProgram(function.name, tuple(template), inputs, outputs, tuple(steps), function.nodes, frozenset(shared), copies)


def find_addresses(values: Sequence[Any]) -> Iterator[int]:
    """Yield the addresses of tensors, including those in lists."""
    for value in values:
        if isinstance(value, list):
            yield from find_addresses(value)
        elif isinstance(value, torch.Tensor):
            yield value.untyped_storage().data_ptr()


def _list_last_uses(function: Function) -> list[list[str]]:
    """Per node, the values that are dead after it: read for the last time or never read. Linear time."""
    # Outputs and constants never die.
    seen = {value.name for value in function.outputs} | set(function.constants)
    dying: list[list[str]] = []
    for node in reversed(function.nodes):
        names = dict.fromkeys((*node.uses, *node.defines))
        dying.append([name for name in names if name not in seen])
        seen.update(names)
    return dying[::-1]


def _make_step(run: Run, node: Node, slots: dict[str, int], dying: Sequence[str]) -> Step:
    arguments = tuple(slots[name] for name in (*node.inputs, *node.captures))
    results = tuple(slots[name] if name else UNWANTED for name in node.outputs)
    dead = tuple(slots[name] for name in dying)
    return run, arguments, results[0] if _returns_one(node) else results, dead


def _returns_one(node: Node) -> bool:
    return len(node.outputs) == 1 and not node.bodies


def _make_kernel(at: TorchKernelContext) -> Run:
    """The kernel of a node, which returns one output or a tuple of several."""
    node, function = at.node, at.function
    kernel = ops.find(node, function)
    if node.domain == DOMAIN:
        run = make_opaque_kernel(at)
    elif isinstance(kernel, str):
        run = _decompose(at, kernel)
    else:
        run = _bind_constants(kernel.code(node, at), kernel.host, at)
        if not node.bodies and node.op_type not in MOVING:
            run = _truncate_results(run, [_find_mask(function, name) for name in node.outputs])
    return _select_first(run) if _returns_one(node) else run


def _bind_constants(run: Run, host: Sequence[int], at: TorchKernelContext) -> Run:
    """Pass constant sizes and axes as NumPy arrays, so that no call reads them from tensors."""
    constants = {i: constant.array for i in host if (constant := find_constant_input(at.node, at.function, i)) is not None}
    if not constants:
        return run

    def call(*inputs: Any) -> Any:
        values = list(inputs)
        for i, array in constants.items():
            values[i] = array
        return run(*values)

    return call


def _decompose(at: TorchKernelContext, reason: str) -> Run:
    """The kernel of a node that is computed by its decomposition."""
    node = at.node
    decomposition = find_decomposition(node, at.function)
    if decomposition is None:
        raise CompileRefused(reason)
    program = at.compile(decomposition)
    positions = {f"i{k}": node.inputs.index(name) for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    picks = [positions[value.name] for value in decomposition.inputs]
    places = {name: k for k, name in enumerate(value.name for value in decomposition.outputs)}
    indices = [places.get(f"o{k}") if name else None for k, name in enumerate(node.outputs)]

    def run(*inputs: Any) -> tuple[Any, ...]:
        results = program([inputs[i] for i in picks])
        return tuple(None if place is None else results[place] for place in indices)

    return run


def _select_first(run: Run) -> Run:
    """A kernel that returns only the first output."""

    def run_first(*inputs: Any) -> Any:
        result = run(*inputs)
        return result[0] if result.__class__ is tuple else result

    return run_first


def _truncate_results(run: Run, masks: Sequence[int | None]) -> Run:
    """A kernel whose results are truncated to the bits of their types, which are represented by wider ones."""
    if not any(masks):
        return run

    def run_truncated(*inputs: Any) -> Any:
        result = run(*inputs)
        if result.__class__ is not tuple:
            return result & masks[0]
        return tuple(value if mask is None else value & mask for value, mask in zip(result, masks, strict=False))

    return run_truncated


def _find_mask(function: Function, name: str) -> int | None:
    """The bits of a value that is represented by a wider type; None otherwise."""
    type_ = function.get_type(name) if name else None
    return MASKS.get(type_.dtype) if isinstance(type_, TensorType) else None
