"""Run a Function on a device: the same kernels over the device's array module; values that determine sizes stay on the host.

Shapes, and values computed from shapes, are kept on the host until another kernel reads them on the device. Otherwise each
kernel that allocates an array of such a size would have to wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, peak_of_values
from xrt.engines.contract.op_table import Kernel
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.support import list_used_outputs
from xrt.engines.toy.kernels import KernelContext
from xrt.engines.toy.tape import describe_value
from xrt.errors import CompileRefused, RunFailed, XRTError
from xrt.graph import Constant, DType, Function, MapType, Node, OptionalType, SequenceType, TensorType, Type, is_static

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.engines.kernels.table import Run
    from xrt.engines.toy.native import KernelSelection


FEW = 64
"""Maximum number of elements of a constant that is treated as a shape value."""
SHAPES = frozenset({"Shape", "Size"})
"""Operators that read only the shape of their input, not its data."""
STEPS = frozenset(
    [
        *("Abs", "Add", "And", "Cast", "Ceil", "Concat", "Div", "Equal"),
        *("Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max"),
        *("Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceMax", "ReduceMin"),
        *("ReduceProd", "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub"),
        *("Unsqueeze", "Where"),
    ]
)
"""Operators that compute small results from small operands."""


def find_shape_values(function: Function) -> frozenset[str]:
    """Find the shape values: results of Shape and Size, small Constant nodes, and values computed from these. Linear."""
    shape_values: set[str] = set()
    for node in function.nodes:
        if not node.domain and _computes_sizes(node, function, shape_values):
            shape_values.update(node.defines)
    return frozenset(shape_values)


def _computes_sizes(node: Node, function: Function, shape_values: set[str]) -> bool:
    if node.op_type in SHAPES:
        return True
    if node.op_type == "Constant":
        return all(_is_few(attribute.value) for attribute in node.attributes)
    reads = [name for name in node.inputs if name]
    if node.op_type not in STEPS or not any(name in shape_values for name in reads):
        return False
    return all(name in shape_values or _is_small(function.constants.get(name)) for name in reads)


def _is_few(value: object) -> bool:
    """Whether a Constant node's attribute holds at most `FEW` numbers."""
    if isinstance(value, Constant):
        return _is_small(value)
    numbers = value if isinstance(value, tuple) else (value,)
    return len(numbers) <= FEW and all(isinstance(number, int | float) for number in numbers)


def _is_small(constant: Constant | None) -> bool:
    return constant is not None and constant.array.size <= FEW and constant.array.dtype.kind in "biuf"


SUPPORTED = frozenset(
    [
        *(DType.BOOL, DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
        *(DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.COMPLEX64, DType.COMPLEX128),
    ]
)
"""Element types that CuPy supports."""


def plan_device_steps(function: Function, device: str) -> Function:
    """Assign every node to `device`, except nodes inside bodies; an empty `device` leaves the Function unchanged."""
    if not device or all(node.device == device for node in function.nodes):
        return function
    return function.replace(nodes=tuple(replace(node, device=device) for node in function.nodes))


def why_not_on_device(node: Node, function: Function) -> str | None:
    """Explain why the node cannot run on its device with any kernel; None if it may, or if it is a CPU node."""
    if node.device.partition(":")[0] in ("", "cpu"):
        return None
    for name in (*node.uses, *node.defines):
        if _holds_map(function.get_type(name)):
            return f"value {name!r} is {function.get_type(name)}, and maps lie on the host"
        dtype = _find_dtype(function.get_type(name))
        if dtype is not None and dtype not in SUPPORTED:
            return f"value {name!r} is of {dtype}, of which CuPy has no arrays"
    return None


def _find_dtype(type_: Type | None) -> DType | None:
    if isinstance(type_, SequenceType):
        return _find_dtype(type_.element)
    return type_.dtype if isinstance(type_, TensorType) else None


def _holds_map(type_: Type | None) -> bool:
    inside = type_.element if isinstance(type_, SequenceType | OptionalType) else type_
    return isinstance(inside, MapType)


Place: TypeAlias = tuple[str, bool]
"""(value name, whether its copy on the host is meant)."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """One kernel call, or one transfer between host and device."""

    run: Run
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    on_host: bool
    """Whether the results are stored on the host."""
    node: Node | None
    """Named in error messages; None for a transfer."""
    not_recorded: str = ""
    """Why the step cannot be captured in a CUDA graph; empty if it only enqueues work on the stream."""
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Slots and steps of a Function on a device."""

    count: int
    constants: tuple[tuple[int, np.ndarray[Any, Any], bool], ...]
    """(slot, array, whether it stays on the host)."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[DeviceStep, ...]


class DeviceExecutable(Executable):
    """Runs a Function's kernels on the current stream."""

    outputs_are_fresh = True

    def __init__(self, function: Function, choice: KernelSelection, accelerator: Accelerator) -> None:
        self.function = function
        self._choice = choice
        self._accelerator = accelerator
        self._plan: DevicePlan | None = None
        self._template: list[Any] = []

    def prepare(self) -> None:
        """Select kernels and upload the constants to the device."""
        accelerator = self._accelerator
        self._plan = _PlanBuilder(self.function, self._choice, accelerator).plan()
        self._template = [None] * self._plan.count
        stream = accelerator.new_stream()
        with accelerator.activate(stream):
            for slot, array, on_host in self._plan.constants:
                self._template[slot] = array if on_host else accelerator.upload(array)
        accelerator.wait([stream])

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        return _copy_shared(self.compute(inputs), [*inputs, *self._template])

    def compute(self, inputs: Sequence[Any]) -> list[Any]:
        """Compute the outputs, which may alias inputs, constants or each other. Raises RunFailed."""
        if self._plan is None:
            raise RunFailed(
                f"function {self.function.name!r} is not ready to run; call prepare() first, and run() before close()"
            )
        return _run_steps(self._plan, self._template, inputs, self._accelerator, self._choice.engine)

    def why_not_capturable(self) -> str | None:
        plan = self._plan
        if plan is None:
            return "it is not prepared"
        for node in self.function.nodes:
            if node.bodies:
                return f"node {node.name!r} ({node.op}) runs its body as often as its data says"
            if any(not is_static(self.function.get_type(name)) for name in list_used_outputs(node, self.function)):
                return f"node {node.name!r} ({node.op}) makes values whose size only its data tells"
        return next((step.not_recorded for step in plan.steps if step.not_recorded), None)

    def memory(self) -> tuple[MemoryUse, ...]:
        weights = sum(array.nbytes for _, array, on_host in (self._plan.constants if self._plan else ()) if not on_host)
        why = "inner values, each until its last reader has been put on the stream"
        return (
            MemoryUse("weights on the device", weights, "a copy of the constants in the device's own memory"),
            MemoryUse("workspace on the device", peak_of_values(self.function), why, per_call=True),
        )

    def close(self) -> None:
        self._plan, self._template = None, []


# ---------------------------------------------------------------------- running


def _run_steps(
    plan: DevicePlan, template: Sequence[Any], inputs: Iterable[Any], accelerator: Accelerator, engine: str
) -> list[Any]:
    slots = list(template)
    for slot, value in zip(plan.inputs, inputs, strict=True):
        slots[slot] = _to_device(value, accelerator)
    step: DeviceStep
    try:
        for step in plan.steps:
            _run_step(step, slots, accelerator)
    except XRTError:
        raise
    except Exception as cause:
        raise _make_error(engine, step, slots, cause) from cause
    return [slots[slot] for slot in plan.outputs]


def _run_step(step: DeviceStep, slots: list[Any], accelerator: Accelerator) -> None:
    result = step.run(*[slots[slot] for slot in step.arguments])
    values = result if type(result) is tuple else (result,)
    if len(values) < len(step.results):
        raise ValueError(f"the operator has {len(values)} output(s) in this form; the node lists {len(step.results)}")
    for slot, value in zip(step.results, values, strict=False):
        slots[slot] = np.asarray(value, order="C") if step.on_host else _to_device(value, accelerator)
    for slot in step.frees:
        slots[slot] = None


def _to_device(value: Any, accelerator: Accelerator) -> Any:
    """Convert a value to C-contiguous arrays on the device; lists are converted element by element, None stays None."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_to_device(item, accelerator) for item in value]
    xp = accelerator.xp
    if isinstance(value, xp.ndarray):
        return value if value.flags.c_contiguous else xp.ascontiguousarray(value)
    return accelerator.upload(np.asarray(value, order="C"))


def _copy_shared(results: Sequence[Any], others: Iterable[Any]) -> list[Any]:
    """Copy each result that is, or may be a view of, an input, a constant or an earlier result."""
    used_ids = {id(array) for value in others for array in (value if isinstance(value, list) else [value])}
    return [_make_unshared(value, used_ids) for value in results]


def _make_unshared(value: Any, used_ids: set[int]) -> Any:
    if isinstance(value, list):
        return [_make_unshared(item, used_ids) for item in value]
    if value is not None and (id(value) in used_ids or value.base is not None):
        value = value.copy()
    used_ids.add(id(value))
    return value


def _make_error(engine: str, step: DeviceStep, slots: Sequence[Any], cause: Exception) -> RunFailed:
    node = step.node
    where = f"node {node.name!r} ({node.op})" if node is not None else "a copy between host and device"
    arguments = ", ".join(describe_value(slots[i]) for i in step.arguments) or "no inputs"
    return RunFailed(f"engine {engine!r} failed at {where} on ({arguments}): {type(cause).__name__}: {cause}")


# ---------------------------------------------------------------------- planning


@dataclass(slots=True)
class _PlanBuilder:
    """Builds the plan of a Function: one kernel per node, and a transfer where a value is read on the other side."""

    function: Function
    choice: KernelSelection
    accelerator: Accelerator
    slots: dict[Place, int] = field(default_factory=dict)
    computed: set[Place] = field(default_factory=set)
    steps: list[DeviceStep] = field(default_factory=list)

    def plan(self) -> DevicePlan:
        """Build the slots and steps. Linear."""
        function = self.function
        sizes = find_shape_values(function)
        inputs = tuple(self._define((value.name, False)) for value in function.inputs)
        for node in function.nodes:
            self._add_node(node, on_host=all(name in sizes for name in node.defines))
        outputs = tuple(self._find_slot((value.name, False)) for value in function.outputs)
        constants = tuple(self._iter_constants())
        permanent = {*inputs, *outputs, *(slot for slot, _, _ in constants)}
        return DevicePlan(len(self.slots) + 1, constants, inputs, outputs, tuple(_add_frees(self.steps, permanent)))

    def _number_slot(self, place: Place) -> int:
        return self.slots.setdefault(place, len(self.slots) + 1)

    def _define(self, place: Place) -> int:
        self.computed.add(place)
        return self._number_slot(place)

    def _find_slot(self, place: Place) -> int:
        """The slot of a value on host or device; adds a transfer if it is only on the other side. Slot 0 is an absent value."""
        name, on_host = place
        if not name:
            return 0
        if place not in self.computed and name not in self.function.constants:
            self.steps.append(self._make_transfer(name, on_host))
        return self._define(place)

    def _make_transfer(self, name: str, on_host: bool) -> DeviceStep:
        arguments, results = (self._number_slot((name, not on_host)),), (self._number_slot((name, on_host)),)
        if on_host:
            return DeviceStep(self.accelerator.download, arguments, results, True, None, f"value {name!r} is wanted on the host")
        return DeviceStep(self.accelerator.upload, arguments, results, False, None, f"value {name!r} is computed on the host")

    def _add_node(self, node: Node, on_host: bool) -> None:
        kernel, host_inputs = self._make_kernel(node, on_host)
        names = (*node.inputs, *node.captures)
        reads_on_host = on_host and node.op_type not in SHAPES  # SHAPES read no data, so their input may be on either side
        arguments = tuple(self._find_slot((name, reads_on_host or i in host_inputs)) for i, name in enumerate(names))
        count = max((i for i, name in enumerate(node.outputs, 1) if name), default=0)
        results = tuple(self._define((name, on_host)) if name else 0 for name in node.outputs[:count])
        self.steps.append(DeviceStep(kernel, arguments, results, on_host, node))

    def _make_kernel(self, node: Node, on_host: bool) -> tuple[Run, tuple[int, ...]]:
        kernel = self.choice.in_python(replace(node, device="") if on_host else node, self.function)
        if isinstance(kernel, str):
            raise CompileRefused(f"engine {self.choice.engine!r} cannot take node {node.name!r} ({node.op}): {kernel}")
        env = KernelContext(node, self.function, np if on_host else self.accelerator.xp, self._compile_body)
        return (kernel.code(node, env), kernel.host) if isinstance(kernel, Kernel) else (kernel(node, env), ())

    def _compile_body(self, function: Function) -> Callable[[Sequence[Any]], Any]:
        """Compile a body to a callable; uploads its constants now."""
        inner = DeviceExecutable(plan_device_steps(function, self.accelerator.name), self.choice, self.accelerator)
        inner.prepare()
        return inner.compute

    def _iter_constants(self) -> Iterator[tuple[int, np.ndarray[Any, Any], bool]]:
        for (name, on_host), slot in self.slots.items():
            if name in self.function.constants:
                yield slot, self.function.constants[name].array, on_host


def _add_frees(steps: Sequence[DeviceStep], permanent: set[int]) -> Iterator[DeviceStep]:
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        last.update(dict.fromkeys((*step.arguments, *step.results), number))
    freed: dict[int, list[int]] = {}
    for slot, number in last.items():
        if slot not in permanent:
            freed.setdefault(number, []).append(slot)
    for number, step in enumerate(steps):
        yield replace(step, frees=tuple(freed.get(number, ())))
