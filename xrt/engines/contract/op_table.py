"""Kernels by operator, for engines that work op by op: each engine owns one table, filled by decorators in its own files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from xrt.errors import EngineError
from xrt.graph import Function, Node, is_training

__all__ = ["Kernel", "OpTable", "Predicate"]

K = TypeVar("K")
Predicate = Callable[[Node, Function], str | None]
"""Says why a kernel cannot serve a node; None when it can."""


@dataclass(frozen=True, slots=True)
class Kernel(Generic[K]):
    """One way to compute an operator, and when it applies."""

    op_type: str
    domain: str
    code: K
    """What the engine calls; its signature is the engine's own affair."""
    since: int
    """The first opset version that the kernel serves."""
    until: int | None
    """The last one, None for no end."""
    devices: tuple[str, ...]
    why_not: Predicate | None
    priority: int
    train: bool
    """Whether the kernel also serves the operator's training form. False is conservative: a training node is refused."""
    mutable: tuple[int, ...]
    """Inputs (by position) whose buffers the kernel may write its result to."""
    model_update: bool
    """Whether the kernel may serve an operator that updates the model's own state (an optimiser step)."""
    host: tuple[int, ...] = ()
    """Inputs (by position) that the kernel reads as NumPy arrays wherever it runs: extents, axes, counts."""

    def refusal(self, node: Node, function: Function, device: str) -> str | None:
        """Return why this kernel cannot serve the node on that kind of device; None when it can."""
        version = function.opsets.get(node.domain)
        if version is None:
            return f"the function imports no opset for domain {node.domain!r}"
        if version < self.since or (self.until is not None and version > self.until):
            end = "on" if self.until is None else f"to {self.until}"
            return f"the kernel serves opset {self.since} {end}; the model declares {version}"
        if device.partition(":")[0] not in self.devices:
            return f"the kernel runs on {', '.join(self.devices)}, not on {device}"
        if not self.train and is_training(node, function):
            return f"the kernel does not serve the training form of {node.op}"
        if not self.model_update and node.domain == "ai.onnx.preview.training":
            return f"the kernel does not serve operators that update the model, as {node.op} does"
        return self.why_not(node, function) if self.why_not else None


class OpTable(Generic[K]):
    """An engine's kernels. Several may serve one operator: the one of highest priority whose predicate is silent wins.

    >>> ops = OpTable("mine")
    >>> @ops("Relu", since=6)
    ... def relu(node): ...
    """

    def __init__(self, engine: str, devices: tuple[str, ...] = ("cpu",)) -> None:
        """Take the devices on which kernels run that do not say otherwise."""
        self.engine = engine
        self.devices = devices
        self._kernels: dict[tuple[str, str], list[Kernel[K]]] = {}

    def extend(self, engine: str) -> OpTable[K]:
        """Return a table of another engine that holds these kernels and may be added to; this one stays as it is.

        >>> base = OpTable("base")
        >>> mine = base.extend("mine")
        >>> _ = mine("Relu")(abs)
        >>> ("", "Relu") in mine, ("", "Relu") in base
        (True, False)
        """
        table: OpTable[K] = OpTable(engine, self.devices)
        table._kernels = {op: list(kernels) for op, kernels in self._kernels.items()}
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
        """Return a decorator that registers a kernel for those operators; without ``devices``, for the table's.

        Raises EngineError, naming both, when another kernel of equal priority serves the same operator, versions and
        devices without a predicate to choose by.
        """
        on = self.devices if devices is None else devices

        def register(code: K) -> K:
            for op_type in op_types:
                self._add(Kernel(op_type, domain, code, since, until, on, why_not, priority, train, mutable, model_update, host))
            return code

        return register

    def _add(self, new: Kernel[K]) -> None:
        known = self._kernels.setdefault((new.domain, new.op_type), [])
        for old in known:
            if old.priority == new.priority and old.why_not is new.why_not and _overlap(old, new):
                raise EngineError(
                    f"engine {self.engine!r} has two kernels of priority {new.priority} for {new.op_type}: "
                    f"{_name(old.code)} and {_name(new.code)}; give one another priority, version range or predicate"
                )
        known.append(new)
        known.sort(key=lambda kernel: -kernel.priority)

    def find(self, node: Node, function: Function, device: str = "cpu", without: Collection[K] = ()) -> Kernel[K] | str:
        """Return the kernel that serves the node, or the reason why none does (each kernel's, best first).

        Kernels whose code is among ``without`` are not asked.
        """
        reasons = []
        for kernel in self._kernels.get((node.domain, node.op_type), ()):
            if without and kernel.code in without:
                continue
            reason = kernel.refusal(node, function, device)
            if reason is None:
                return kernel
            if reason not in reasons:
                reasons.append(reason)
        return "; ".join(reasons) or f"engine {self.engine!r} has no kernel for {node.op}"

    def why_not(self, node: Node, function: Function, device: str = "cpu") -> str | None:
        """Return why no kernel serves the node; None when one does."""
        found = self.find(node, function, device)
        return found if isinstance(found, str) else None

    def list_mutable_inputs(self, node: Node, function: Function, device: str = "cpu") -> tuple[int, ...]:
        """Return the inputs, by place, over which the node's kernel may write its result; none where no kernel serves it."""
        found = self.find(node, function, device)
        return () if isinstance(found, str) else tuple(place for place in found.mutable if place < len(node.inputs))

    def __iter__(self) -> Iterator[Kernel[K]]:
        for kernels in self._kernels.values():
            yield from kernels

    def __contains__(self, op: tuple[str, str]) -> bool:
        """Whether any kernel serves that (domain, operator)."""
        return op in self._kernels


def _overlap(a: Kernel[K], b: Kernel[K]) -> bool:
    ends = (a.until is None or a.until >= b.since) and (b.until is None or b.until >= a.since)
    return ends and bool(set(a.devices) & set(b.devices))


def _name(code: object) -> str:
    return f"{getattr(code, '__module__', '?')}.{getattr(code, '__qualname__', code)}"
