"""The Plan: a partitioned Function as a value, with the reasons for where its nodes are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from xrt.graph import Attribute, AttrKind, Function, Node, TensorType
from xrt.partition.grouping import ReasonGroup, group, group_reasons, list_some
from xrt.partition.options import ClusteringOptions
from xrt.partition.transfers import Transfer, find_transfers

__all__ = ["LAUNCH", "Launch", "Plan", "Reason", "launch_node"]

LAUNCH = "Launch"
DOMAIN = "xrt"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node is not on an engine that comes before its own in the list."""

    node: str
    op: str
    engine: str
    """The spec of the engine that does not have it."""
    text: str
    updating_engine: str = ""
    """The spec of the engine that updates state in place with the node, where this one would copy it; else empty."""

    def __str__(self) -> str:
        return f"{self.node!r} ({self.op}) is not on {self.engine}: {self.text}"


@dataclass(frozen=True, slots=True)
class Launch:
    """One region: the Function that an engine compiles, and its position in the plan."""

    name: str
    engine: str
    """The spec of its engine."""
    function: Function
    """The region as a closed Function; its values are named as in the model."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    """Names of the model's nodes that it holds, in the model's order."""
    device: str
    """Where it runs; empty for the plan's own device."""
    control: tuple[str, ...] = ()
    """Launches that must have run before, without a value passing."""

    @classmethod
    def of(cls, node: Node) -> Launch:
        """Return the region that a launch node holds."""
        return cls(
            node.name,
            node.attr("engine"),
            node.attr("body"),
            node.inputs,
            node.outputs,
            node.attr("nodes"),
            node.device,
            node.control,
        )


def launch_node(
    name: str, engine: str, body: Function, nodes: tuple[str, ...], *, device: str = "", control: tuple[str, ...] = ()
) -> Node:
    """Return the node that represents a region in a folded Function; its inputs and outputs are the body's."""
    attributes = (
        Attribute("body", AttrKind.GRAPH, body),
        Attribute("engine", AttrKind.STRING, engine),
        Attribute("nodes", AttrKind.STRINGS, nodes),
    )
    inputs, outputs = tuple(v.name for v in body.inputs), tuple(v.name for v in body.outputs)
    return Node(LAUNCH, inputs, outputs, attributes, DOMAIN, name, control, device)


@dataclass(frozen=True)
class Plan:
    """A partitioned model: launch nodes in a Function of their own, engines and reasons. Nothing is compiled yet.

    The same Function, engines and options give an equal Plan in any process, also as text and as bytes.
    """

    function: Function
    """The folded model: every node is a launch node; constants that are outputs of the model are its own."""
    engines: tuple[str, ...]
    """Specs of all engines that were asked, by priority; some may have got nothing."""
    reasons: tuple[Reason, ...] = ()
    """For every node one reason per engine that comes before its own, in the model's order."""
    options: ClusteringOptions = ClusteringOptions()
    implicit: str | None = None
    """The spec of the engine that is in the list without having been named."""
    device: str = "cpu"
    """Where values come in and go out, and where launches run that name no device."""

    @property
    def regions(self) -> tuple[Launch, ...]:
        """Another name of `launches`: there is one for each region."""
        return self.launches

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The regions, in an order in which they can run."""
        return tuple(Launch.of(node) for node in self.function.nodes)

    @cached_property
    def copies(self) -> tuple[Transfer, ...]:
        """The boundaries between devices: each value that crosses, once per direction. Empty where all is on one device."""
        return tuple(find_transfers(self.function, self.launches, self.device))

    def estimate_peak(self) -> int | None:
        """Return the most bytes that computed values take at once, in and between launches; None where a size is not known.

        Engines may order a region's nodes otherwise, and need memory to compute on top of it. Linear.
        """
        from xrt.graph.memory_forecast import estimate_peak

        updated = {after for _, after in self.function.aliases}
        last = {name: i for i, node in enumerate(self.function.nodes) for name in node.uses}
        last.update((value.name, len(self.launches)) for value in self.function.outputs)
        alive: dict[str, int] = {}
        most = 0
        for number, launch in enumerate(self.launches):
            inner = estimate_peak(launch.function, updated)
            sizes = {v.name: v.type.nbytes if isinstance(v.type, TensorType) else None for v in launch.function.outputs}
            if inner is None or None in sizes.values():
                return None
            most = max(most, sum(alive.values()) + inner)
            alive.update((name, size or 0) for name, size in sizes.items() if name not in updated)
            alive = {name: size for name, size in alive.items() if last.get(name, -1) > number}
        return most

    def get_device(self, launch: Launch) -> str:
        """Return where a launch runs."""
        return launch.device or self.device

    def _repr_html_(self) -> str:
        """Return the plan as pictures and tables for a notebook."""
        from xrt.partition.html import render_plan  # for notebooks alone

        return render_plan(self)

    def to_bytes(self) -> bytes:
        """Return the Plan as `from_bytes` reads it, constants in full; raises BundleError for more than 2 GB."""
        from xrt.partition.serialization import to_bytes

        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Return the Plan that `to_bytes` wrote; raises BundleError when the bytes are damaged, or too new."""
        from xrt.partition.serialization import from_bytes

        return from_bytes(data)

    def __str__(self) -> str:
        """Return the plan as text: equal regions once, and equal reasons in one line; `reasons` has one for each node."""
        return "\n".join(_lines(self))


def _lines(plan: Plan) -> Iterator[str]:
    nodes = sum(len(launch.nodes) for launch in plan.launches)
    engines = ", ".join(f"{e} (fallback)" if e == plan.implicit else e for e in plan.engines)
    where = f"; device {plan.device}" if plan.device != "cpu" else ""
    yield f"plan: {_counted(nodes, 'node')} in {_counted(len(plan.launches), 'region')} on {engines}{where}"
    if str(plan.options):
        yield f"options: {plan.options}"
    for alike in group(plan.launches, lambda x: (x.engine, x.device, tuple(n.op for n in x.function.nodes), bool(x.control))):
        first, *others = alike
        yield from _launch_lines(first)
        if others:
            yield f"{list_some([x.name for x in others])} on {first.engine}: the same operators as {first.name}"
    for copy in plan.copies:
        yield f"copy {copy}"
    yield from _reason_lines(group_reasons(plan.reasons))


def _reason_lines(groups: Sequence[ReasonGroup]) -> Iterator[str]:
    """Yield a line for each group of reasons; for a group of several, the head gives the engine of each."""
    if not groups:
        return
    is_grouped = any(len(one.reasons) > 1 or len(one.engines) > 1 for one in groups)
    yield "reasons: (node by node in plan.reasons)" if is_grouped else "reasons:"
    for one in groups:
        if len(one.reasons) > 1:
            yield f"  {one.summary} ({one.nodes})"
        else:
            reason = one.reasons[0]
            yield f"  {reason.node!r} ({reason.op}) is not on {', '.join(one.engines)}: {reason.text}"


def _launch_lines(launch: Launch) -> Iterator[str]:
    where = f" ({launch.device})" if launch.device else ""
    yield f"{launch.name} on {launch.engine}{where}: {_counted(len(launch.nodes), 'node')}"
    yield f"  nodes:  {', '.join(f'{node.name} ({node.op})' for node in launch.function.nodes)}"
    yield f"  in:     {', '.join(map(str, launch.function.inputs)) or 'nothing'}"
    yield f"  out:    {', '.join(map(str, launch.function.outputs)) or 'nothing'}"
    for before, after in launch.function.aliases:
        yield f"  writes: {after} into {before}"
    if launch.control:
        yield f"  after:  {', '.join(launch.control)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
