"""The Plan: a partitioned Function as a value, with the reasons for where its nodes are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from xrt.errors import BundleError, XRTError
from xrt.formats.protobuf import read, write
from xrt.graph import Attribute, AttrKind, Function, Node, TensorType, Type
from xrt.partition.options import ClusteringOptions, read_options

__all__ = [
    "FORMAT",
    "LAUNCH",
    "Launch",
    "Plan",
    "Reason",
    "ReasonGroup",
    "Transfer",
    "find_transfers",
    "from_bytes",
    "from_message",
    "group",
    "group_reasons",
    "launch_node",
    "list_some",
    "to_bytes",
    "to_message",
]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that crosses from one device to another, however many launches read it there."""

    value: str
    type: Type | None
    source: str
    """Where the value is made; for an input of the model, the plan's device."""
    target: str
    readers: tuple[str, ...]
    """The launches that read it there, in the plan's order; the model's caller, of an output, is no launch."""

    @property
    def nbytes(self) -> int | None:
        """Bytes that cross; None where they are known only at run time."""
        return self.type.nbytes if isinstance(self.type, TensorType) else None

    def __str__(self) -> str:
        shown = f"{self.value}: {self.type}" if self.type is not None else self.value
        return f"{shown} from {self.source} to {self.target} for {', '.join(self.readers) or 'the caller'}"


def find_transfers(function: Function, launches: Iterable[Launch], device: str) -> Iterator[Transfer]:
    """Yield the copies of a plan in the order in which the values are made; ``device`` is the plan's own.

    Constants do not cross: each region has its own, where it runs. Linear.
    """
    launches = tuple(launches)
    if all(launch.device in ("", device) for launch in launches):
        return
    made: dict[str, tuple[str, Type | None]] = {value.name: (device, value.type) for value in function.inputs}
    for launch in launches:
        made.update((value.name, (launch.device or device, value.type)) for value in launch.function.outputs)
    read: dict[tuple[str, str], list[str]] = {}
    for launch in launches:
        for name in launch.inputs:
            read.setdefault((name, launch.device or device), []).append(launch.name)
    for value in function.outputs:
        read.setdefault((value.name, device), [])
    wanted: dict[str, list[str]] = {}
    for name, target in read:
        wanted.setdefault(name, []).append(target)
    for name, (source, type_) in made.items():
        for target in wanted.get(name, ()):
            if target != source:
                yield Transfer(name, type_, source, target, tuple(read[name, target]))


GROUPED = 3
"""Number of equal things from which one line represents all of them."""
SHOWN = 4
"""Names that such a line gives."""
T = TypeVar("T")


def group(things: Iterable[T], key: Callable[[T], Hashable], least: int = GROUPED) -> Iterator[Sequence[T]]:
    """Yield things of equal key together where there are at least so many, at the place of the first; each other alone."""
    listed = list(things)
    alike: dict[Hashable, list[T]] = {}
    for thing in listed:
        alike.setdefault(key(thing), []).append(thing)
    met: set[Hashable] = set()
    for thing in listed:
        kind = key(thing)
        if len(alike[kind]) < least:
            yield (thing,)
        elif kind not in met:
            met.add(kind)
            yield alike[kind]


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Nodes that are not on some engines for the same reason."""

    reasons: tuple[Reason, ...]
    """One for each node, of the first of the engines."""
    engines: tuple[str, ...]

    @property
    def summary(self) -> str:
        """What they have in common: ``52 nodes not on ort, xla: placed by measurement``."""
        count = len(self.reasons)
        return f"{count} node{'s' * (count != 1)} not on {', '.join(self.engines)}: {self.reasons[0].text}"

    @property
    def nodes(self) -> str:
        """Some of the nodes' names."""
        return list_some([reason.node for reason in self.reasons])


def group_reasons(reasons: Iterable[Reason], least: int = GROUPED) -> list[ReasonGroup]:
    """Return the reasons in groups: nodes of equal engine and reason, where there are at least so many, else each alone.

    Groups of the same nodes and the same reason on several engines become one.
    """
    merged: dict[tuple[str, tuple[str, ...]], ReasonGroup] = {}
    for alike in group(reasons, lambda reason: (reason.engine, reason.text), least):
        key = alike[0].text, tuple(reason.node for reason in alike)
        known = merged.get(key)
        engines = (*known.engines, alike[0].engine) if known else (alike[0].engine,)
        merged[key] = ReasonGroup(known.reasons if known else tuple(alike), engines)
    return list(merged.values())


def list_some(names: Sequence[str], most: int = SHOWN) -> str:
    """Return the names, the first of them where there are more.

    >>> list_some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Return the Plan that `to_bytes` wrote; raises BundleError when the bytes are damaged, or too new."""
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


FORMAT = 1
"""The version of the message that is written, and the only one that is read."""


def to_bytes(plan: Plan) -> bytes:
    """Return the Plan as a message of ``proto/xrt.proto``; equal Plans give equal bytes.

    Constants are in it in full. Raises BundleError for more than 2 GB, ModelError for a region that ONNX cannot say.
    """
    return write("Plan", to_message(plan))


def to_message(plan: Plan) -> dict[str, Any]:
    """Return the Plan as the values of its message."""
    bare = tuple(replace(node, attributes=()) for node in plan.function.nodes)
    return {
        "format": FORMAT,
        "function": plan.function.replace(nodes=bare),
        "launches": [_launch(launch) for launch in plan.launches],
        "engines": plan.engines,
        "reasons": [asdict(reason) for reason in plan.reasons],
        "options": asdict(plan.options),
        "implicit": plan.implicit,
        "device": "" if plan.device == "cpu" else plan.device,
    }


def _launch(launch: Launch) -> dict[str, Any]:
    return {"name": launch.name, "engine": launch.engine, "nodes": launch.nodes, "function": launch.function}


def from_bytes(data: bytes) -> Plan:
    """Return the Plan that `to_bytes` wrote.

    Raises BundleError when the bytes are damaged, are not a Plan, or were written by a version that is too new.
    """
    return from_message(read("Plan", data))


def from_message(values: dict[str, Any]) -> Plan:
    """Return the Plan of those values; raises BundleError as `from_bytes` does."""
    if values["format"] != FORMAT:
        said = f"the Plan has format {values['format']}, and this version of XRT reads {FORMAT}"
        raise BundleError(f"{said}; read it with the version that wrote it")
    try:
        return _plan(values)
    except XRTError as error:
        raise BundleError(f"the Plan is damaged: {error}") from error


def _plan(values: dict[str, Any]) -> Plan:
    options = values["options"]
    if options is None or values["function"] is None:
        raise BundleError("it has no model or no options")
    return Plan(
        function=_with_launches(values["function"], values["launches"]),
        engines=values["engines"],
        reasons=tuple(Reason(**reason) for reason in values["reasons"]),
        options=read_options(options),
        implicit=values["implicit"],
        device=values["device"] or "cpu",
    )


def _with_launches(frame: Function, launches: tuple[dict[str, Any], ...]) -> Function:
    """Return the folded function, each node of which has what it launches again."""
    known = {launch["name"]: launch for launch in launches}
    return frame.replace(nodes=tuple(_with_launch(node, known, frame) for node in frame.nodes))


def _with_launch(node: Node, known: dict[str, dict[str, Any]], frame: Function) -> Node:
    launch = known.get(node.name)
    if launch is None or launch["function"] is None:
        raise BundleError(f"it has {len(frame.nodes)} launch nodes and no launch for {node.name!r}")
    engine, body, nodes = launch["engine"], launch["function"], launch["nodes"]
    return launch_node(node.name, engine, body, nodes, device=node.device, control=node.control)
