"""A table of kernels by operator, for engines that run a graph node by node; decorators register the kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from xrt.errors import EngineError
from xrt.graph import Function, Node
from xrt.operators import is_training

K = TypeVar("K")
Predicate = Callable[[Node, Function], str | None]
"""Explains why a kernel does not support a node; None if it does."""


@dataclass(frozen=True, slots=True)
class Kernel(Generic[K]):
    """One implementation of an operator and the conditions under which it applies."""

    op_type: str
    domain: str
    code: K
    """The registered object, usually a function. Each engine defines its arguments."""
    since: int
    until: int | None
    """Last supported opset version; None for no limit."""
    devices: tuple[str, ...]
    why_not: Predicate | None
    priority: int
    train: bool
    """Whether it also supports the training form of the operator."""
    mutable: tuple[int, ...]
    """Indices of inputs whose buffers the kernel may overwrite with its result."""
    model_update: bool
    """Whether it also supports operators that update the state of the model, such as an optimizer step."""
    host: tuple[int, ...] = ()
    """Indices of inputs that are NumPy arrays on every device, because the kernel reads their values: shapes, axes, counts."""

    def explain_refusal(self, node: Node, function: Function, device: str) -> str | None:
        """Explain why this kernel does not support the node on this kind of device; None if it does."""
        version = function.opsets.get(node.domain)
        if version is None:
            return f"the function imports no opset for domain {node.domain!r}"
        if version < self.since or (self.until is not None and version > self.until):
            supported = f"{self.since} and later" if self.until is None else f"{self.since} to {self.until}"
            return f"the kernel supports opset {supported}; the model declares {version}"
        if device.partition(":")[0] not in self.devices:
            return f"the kernel runs on {', '.join(self.devices)}, not on {device}"
        if not self.train and is_training(node, function):
            return f"the kernel does not support the training form of {node.op}"
        if not self.model_update and node.domain == "ai.onnx.preview.training":
            return f"the kernel does not support operators that update the model, such as {node.op}"
        return self.why_not(node, function) if self.why_not else None


class OpTable(Generic[K]):
    """The kernels of an engine. A node is computed by the kernel of highest priority that supports it.

    >>> ops = OpTable("mine")
    >>> @ops("Relu", since=6)
    ... def relu(node): ...
    """

    def __init__(self, engine: str, devices: tuple[str, ...] = ("cpu",)) -> None:
        """``devices`` is the default for kernels."""
        self.engine = engine
        self.devices = devices
        self._kernels: dict[tuple[str, str], list[Kernel[K]]] = {}

    def extend(self, engine: str, *others: OpTable[K]) -> OpTable[K]:
        """Make a table for another engine with the kernels of this table and of ``others``, which do not change."""
        table: OpTable[K] = OpTable(engine, self.devices)
        table._kernels = {op: list(kernels) for op, kernels in self._kernels.items()}
        for kernel in chain.from_iterable(others):
            table._add(kernel)
        return table

    def __call__(
        self,
        *op_types: str,
        domain: str = "",
        since: int = 1,
        until: int | None = None,
        devices: tuple[str, ...] | None = None,
        why_not: Predicate | None = None,
        priority: int = 0,
        train: bool = False,
        mutable: tuple[int, ...] = (),
        model_update: bool = False,
        host: tuple[int, ...] = (),
    ) -> Callable[[K], K]:
        """Return a decorator that registers a kernel for these operators. `Kernel` describes the arguments.

        Raises EngineError if the table already has a kernel for the operator with the same priority and predicate, and the two
        have a version and a device in common.
        """
        kernel_devices = self.devices if devices is None else devices

        def register(code: K) -> K:
            for op_type in op_types:
                self._add(
                    Kernel(
                        op_type, domain, code, since, until, kernel_devices, why_not, priority, train, mutable, model_update, host
                    )
                )
            return code

        return register

    def _add(self, new: Kernel[K]) -> None:
        kernels = self._kernels.setdefault((new.domain, new.op_type), [])
        for old in kernels:
            versions_overlap = (old.until is None or old.until >= new.since) and (new.until is None or new.until >= old.since)
            devices_overlap = not set(old.devices).isdisjoint(new.devices)
            # Kernels with different predicates may support different nodes.
            are_alike = old.priority == new.priority and old.why_not is new.why_not
            if are_alike and versions_overlap and devices_overlap:
                raise EngineError(
                    f"engine {self.engine!r} has two kernels of priority {new.priority} for {new.op_type}: "
                    f"{_format(old.code)} and {_format(new.code)}; change the priority, the version range or the predicate of one"
                )
        kernels.append(new)
        # The sort is stable: kernels of equal priority are tried in the order of registration.
        kernels.sort(key=lambda kernel: -kernel.priority)

    def find(self, node: Node, function: Function, device: str = "cpu", excluded: Collection[K] = ()) -> Kernel[K] | str:
        """Find the kernel that supports the node, except kernels whose code is in ``excluded``; or return the reasons of all."""
        reasons = []
        for kernel in self._kernels.get((node.domain, node.op_type), ()):
            if excluded and kernel.code in excluded:
                continue
            reason = kernel.explain_refusal(node, function, device)
            if reason is None:
                return kernel
            # Several kernels may decline a node for the same reason.
            if reason not in reasons:
                reasons.append(reason)
        return "; ".join(reasons) or f"engine {self.engine!r} has no kernel for {node.op}"

    def why_not(self, node: Node, function: Function, device: str = "cpu") -> str | None:
        kernel = self.find(node, function, device)
        return kernel if isinstance(kernel, str) else None

    def __iter__(self) -> Iterator[Kernel[K]]:
        for kernels in self._kernels.values():
            yield from kernels

    def __contains__(self, op: tuple[str, str]) -> bool:
        """Whether there is any kernel for this (domain, operator)."""
        return op in self._kernels


def _format(code: object) -> str:
    return f"{getattr(code, '__module__', '?')}.{getattr(code, '__qualname__', code)}"
