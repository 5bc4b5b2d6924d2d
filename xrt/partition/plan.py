"""The Plan: a partitioned Function with its regions, device transfers and reasons, printed as text or serialized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from xrt.errors import BundleError, XRTError
from xrt.graph import Attribute, AttrKind, Function, Node, TensorType, Type
from xrt.partition.options import ClusteringOptions, read_options

if TYPE_CHECKING:
    from xrt.html.views import MeanCall, PlanRegion, RegionInput


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a value from one device to another, for all readers on the target device."""

    value: str
    type: Type | None
    source: str
    """Device of the producer; for an input of the model, the plan's device."""
    target: str
    readers: tuple[str, ...]
    """Names of the launches on the target that read the value, in plan order; empty if it is only an output of the model."""

    @property
    def nbytes(self) -> int | None:
        """Size of the value in bytes; None if it is known only at run time."""
        return self.type.nbytes if isinstance(self.type, TensorType) else None

    def __str__(self) -> str:
        shown = f"{self.value}: {self.type}" if self.type is not None else self.value
        return f"{shown} from {self.source} to {self.target} for {', '.join(self.readers) or 'the caller'}"


def find_transfers(function: Function, launches: Iterable[Launch], device: str) -> Iterator[Transfer]:
    """Yield the copies between devices of a plan, in the order in which the values are defined; ``device`` is the plan's device.

    Constants are not copied, because each region contains the constants that it reads. Linear.
    """
    launches = tuple(launches)
    # The common case: all regions on one device.
    if all(launch.device in ("", device) for launch in launches):
        return
    sources: dict[str, tuple[str, Type | None]] = {value.name: (device, value.type) for value in function.inputs}
    for launch in launches:
        sources.update((value.name, (launch.device or device, value.type)) for value in launch.function.outputs)
    readers: dict[tuple[str, str], list[str]] = {}
    for launch in launches:
        for name in launch.inputs:
            readers.setdefault((name, launch.device or device), []).append(launch.name)
    for value in function.outputs:
        # Outputs are returned on the plan's device, even if no launch reads them there.
        readers.setdefault((value.name, device), [])
    targets: dict[str, list[str]] = {}
    for name, target in readers:
        targets.setdefault(name, []).append(target)
    for name, (source, type_) in sources.items():
        for target in targets.get(name, ()):
            if target != source:
                yield Transfer(name, type_, source, target, tuple(readers[name, target]))


# At least this many equal regions or reasons share one line of text.
MIN_GROUP_SIZE = 3
MAX_LISTED_NAMES = 4
T = TypeVar("T")


def group_by(items: Iterable[T], key: Callable[[T], Hashable], min_size: int = MIN_GROUP_SIZE) -> Iterator[Sequence[T]]:
    """Yield groups of items with equal keys, in the order of their first items. Smaller groups than ``min_size`` are split."""
    entries = list(items)
    groups: dict[Hashable, list[T]] = {}
    for item in entries:
        groups.setdefault(key(item), []).append(item)
    seen: set[Hashable] = set()
    for item in entries:
        item_key = key(item)
        if len(groups[item_key]) < min_size:
            yield (item,)
        elif item_key not in seen:
            seen.add(item_key)
            yield groups[item_key]


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Nodes that are not on some engines, all for the same reason."""

    reasons: tuple[Reason, ...]
    """One reason per node, for the first engine of ``engines``."""
    engines: tuple[str, ...]

    @property
    def summary(self) -> str:
        """For example ``52 nodes not on ort, xla: placed by measurement``."""
        return f"{_count(len(self.reasons), 'node')} not on {', '.join(self.engines)}: {self.reasons[0].text}"

    @property
    def nodes(self) -> str:
        """The names of the first nodes, and the number of the other nodes."""
        return list_some([reason.node for reason in self.reasons])


def group_reasons(reasons: Iterable[Reason], min_size: int = MIN_GROUP_SIZE) -> list[ReasonGroup]:
    """Group reasons by engine and text; groups of fewer than ``min_size`` nodes are split.

    Groups of several engines with the same nodes and text are merged.
    """
    merged: dict[tuple[str, tuple[str, ...]], ReasonGroup] = {}
    for equal_reasons in group_by(reasons, lambda reason: (reason.engine, reason.text), min_size):
        engine, text = equal_reasons[0].engine, equal_reasons[0].text
        key = text, tuple(reason.node for reason in equal_reasons)
        if key in merged:
            merged[key] = replace(merged[key], engines=(*merged[key].engines, engine))
        else:
            merged[key] = ReasonGroup(tuple(equal_reasons), (engine,))
    return list(merged.values())


def list_some(names: Sequence[str]) -> str:
    """Join the first `MAX_LISTED_NAMES` names, and count the others.

    >>> list_some("abcdef")
    'a, b, c, d and 2 more'
    """
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + more


LAUNCH_OP = "Launch"
LAUNCH_DOMAIN = "xrt"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node is not on an engine that has higher priority than the node's engine."""

    node: str
    op: str
    engine: str
    text: str
    updating_engine: str = ""
    """If the reason is that ``engine`` would copy state: the spec of the engine that updates the state in place; else empty."""

    def __str__(self) -> str:
        return f"{self.node!r} ({self.op}) is not on {self.engine}: {self.text}"


@dataclass(frozen=True, slots=True)
class Launch:
    """One region of a plan: the Function to compile, its engine, and its connections to other regions."""

    name: str
    engine: str
    function: Function
    """The nodes of the region as a Function; values have the same names as in the model."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    """Names of the model's nodes in the region, in model order."""
    device: str
    """The device that runs the region; empty for the plan's device."""
    control: tuple[str, ...] = ()
    """Names of launches that must run before this one, although it reads none of their outputs."""

    @classmethod
    def of(cls, node: Node) -> Launch:
        """Convert a launch node, as `launch_node` creates it, to a Launch."""
        engine, body, nodes = node.attr("engine"), node.attr("body"), node.attr("nodes")
        return cls(node.name, engine, body, node.inputs, node.outputs, nodes, node.device, node.control)


def launch_node(
    name: str, engine: str, body: Function, nodes: tuple[str, ...], *, device: str = "", control: tuple[str, ...] = ()
) -> Node:
    """Create the launch node of a region, with the inputs and outputs of ``body``. ``nodes`` are the names of its nodes."""
    attributes = (
        Attribute("body", AttrKind.GRAPH, body),
        Attribute("engine", AttrKind.STRING, engine),
        Attribute("nodes", AttrKind.STRINGS, nodes),
    )
    inputs, outputs = tuple(v.name for v in body.inputs), tuple(v.name for v in body.outputs)
    return Node(LAUNCH_OP, inputs, outputs, attributes, LAUNCH_DOMAIN, name, control, device)


@dataclass(frozen=True)
class Plan:
    """A partitioned model: a Function of launch nodes, engines and reasons. Nothing is compiled yet.

    Deterministic: the same Function, engines and options result in an equal Plan, with equal text and bytes, in any process.
    """

    function: Function
    """The folded model: each node is a launch node. Its constants are those that are outputs of the model."""
    engines: tuple[str, ...]
    """Specs of all engines that were considered, by priority; some may have no nodes."""
    reasons: tuple[Reason, ...] = ()
    """For each node, in model order, one reason per engine that has higher priority than the node's engine."""
    options: ClusteringOptions = ClusteringOptions()
    implicit: str | None = None
    """Spec of the engine that was added although the user did not list it; None if there is none."""
    device: str = "cpu"
    """Device of the model's inputs and outputs, and of launches without a device."""

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(Launch.of(node) for node in self.function.nodes)

    @property
    def used_engines(self) -> tuple[str, ...]:
        """Specs of the engines that run a region, in order of their first region."""
        return tuple(dict.fromkeys(launch.engine for launch in self.launches))

    @cached_property
    def copies(self) -> tuple[Transfer, ...]:
        """The copies of values between devices; empty if everything runs on one device."""
        return tuple(find_transfers(self.function, self.launches, self.device))

    def get_device(self, launch: Launch) -> str:
        return launch.device or self.device

    def _repr_html_(self) -> str:
        from xrt.html.views import format_count, render_cell

        nodes = sum(len(launch.nodes) for launch in self.launches)
        facts = {
            "engines": ", ".join(f"{spec} (fallback)" if spec == self.implicit else spec for spec in self.engines),
            "device": self.device if self.device != "cpu" else None,
            "options": str(self.options) or None,
            "copies": str(len(self.copies)) if self.copies else None,
        }
        title = f"Plan: {format_count(nodes, 'node')} in {format_count(len(self.launches), 'region')}"
        return render_cell("plan.html", title=title, facts=facts, **describe_plan(self, self.reasons))

    def to_bytes(self) -> bytes:
        """Serialize as a Plan message of ``proto/xrt.proto``, including all constants; equal Plans have equal bytes.

        Raises BundleError above 2 GB, and ModelError for a region that ONNX cannot express.
        """
        from xrt.formats.protobuf import write_plan  # protobuf is slow to import

        return write_plan(to_message(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Deserialize a Plan; raises BundleError if the data is corrupt or too new."""
        from xrt.formats.protobuf import read_plan

        return from_message(read_plan(data))

    def __str__(self) -> str:
        """Format the plan. Equal regions share a line, and so do equal reasons; `Plan.reasons` has one reason per node."""
        return "\n".join(_format_lines(self))


def _format_lines(plan: Plan) -> Iterator[str]:
    nodes = sum(len(launch.nodes) for launch in plan.launches)
    engines = ", ".join(f"{e} (fallback)" if e == plan.implicit else e for e in plan.engines)
    where = f"; device {plan.device}" if plan.device != "cpu" else ""
    yield f"plan: {_count(nodes, 'node')} in {_count(len(plan.launches), 'region')} on {engines}{where}"
    if str(plan.options):
        yield f"options: {plan.options}"
    for first, *others in group_by(plan.launches, _make_launch_key):
        yield from _format_launch(first)
        if others:
            yield f"{list_some([x.name for x in others])} on {first.engine}: the same operators as {first.name}"
    for copy in plan.copies:
        yield f"copy {copy}"
    yield from _format_reasons(group_reasons(plan.reasons))


def _make_launch_key(launch: Launch) -> Hashable:
    return launch.engine, launch.device, tuple(node.op for node in launch.function.nodes), bool(launch.control)


def _format_reasons(groups: Sequence[ReasonGroup]) -> Iterator[str]:
    if not groups:
        return
    is_grouped = any(len(entry.reasons) > 1 or len(entry.engines) > 1 for entry in groups)
    yield "reasons: (node by node in plan.reasons)" if is_grouped else "reasons:"
    for entry in groups:
        if len(entry.reasons) > 1:
            yield f"  {entry.summary} ({entry.nodes})"
        else:
            reason = entry.reasons[0]
            yield f"  {reason.node!r} ({reason.op}) is not on {', '.join(entry.engines)}: {reason.text}"


def _format_launch(launch: Launch) -> Iterator[str]:
    where = f" ({launch.device})" if launch.device else ""
    yield f"{launch.name} on {launch.engine}{where}: {_count(len(launch.nodes), 'node')}"
    yield f"  nodes:  {', '.join(f'{node.name} ({node.op})' for node in launch.function.nodes)}"
    yield f"  in:     {', '.join(map(str, launch.function.inputs)) or 'nothing'}"
    yield f"  out:    {', '.join(map(str, launch.function.outputs)) or 'nothing'}"
    for input_name, output_name in launch.function.aliases:
        yield f"  writes: {output_name} into {input_name}"
    if launch.control:
        yield f"  after:  {', '.join(launch.control)}"


def _count(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def to_message(plan: Plan) -> dict[str, Any]:
    """Convert a Plan to the fields of its protobuf message, by name."""
    # Each body is stored once: in `launches`, not in the attributes of the launch node.
    nodes = tuple(replace(node, attributes=()) for node in plan.function.nodes)
    return {
        "function": plan.function.replace(nodes=nodes),
        "launches": [{"name": x.name, "engine": x.engine, "nodes": x.nodes, "function": x.function} for x in plan.launches],
        "engines": plan.engines,
        "reasons": [asdict(reason) for reason in plan.reasons],
        "options": asdict(plan.options),
        "implicit": plan.implicit,
        "device": "" if plan.device == "cpu" else plan.device,
    }


def from_message(values: dict[str, Any]) -> Plan:
    """Convert the fields of a protobuf message to a Plan; raises BundleError if they are inconsistent."""
    options, function = values["options"], values["function"]
    launches = {launch["name"]: launch for launch in values["launches"]}
    try:
        if options is None or function is None:
            raise BundleError("it has no model or no options")
        return Plan(
            function=function.replace(nodes=tuple(_restore_launch_node(node, launches, function) for node in function.nodes)),
            engines=values["engines"],
            reasons=tuple(Reason(**reason) for reason in values["reasons"]),
            options=read_options(options),
            implicit=values["implicit"],
            device=values["device"] or "cpu",
        )
    except XRTError as error:
        raise BundleError(f"the Plan is damaged: {error}") from error


def _restore_launch_node(node: Node, launches: dict[str, dict[str, Any]], function: Function) -> Node:
    """Restore the attributes of a launch node, which ``launches`` has by its name; raises BundleError if there are none."""
    launch = launches.get(node.name)
    if launch is None or launch["function"] is None:
        raise BundleError(f"it has {len(function.nodes)} launch nodes and no launch for {node.name!r}")
    engine, body, nodes = launch["engine"], launch["function"], launch["nodes"]
    return launch_node(node.name, engine, body, nodes, device=node.device, control=node.control)


def describe_plan(plan: Plan | None, reasons: Sequence[Reason], times: MeanCall | None = None) -> dict[str, Any]:
    """Create the variables of the macros in ``plans.html``: the diagram, the launches, and one row per group of equal reasons."""
    from xrt.html.views import make_plan_picture

    regions = list_regions(plan) if plan else ()
    launches = plan.launches if plan else ()
    groups = group_reasons(reasons, min_size=1)
    colors = color_engines(region.engine for region in regions)
    return {
        "picture": make_plan_picture("this model", regions, times, colors) if regions else None,
        "launches": [_describe_launch(plan, x, region) for x, region in zip(launches, regions, strict=True)] if plan else [],
        "reasons": [(x.nodes, len(x.reasons), ", ".join(x.engines), x.reasons[0].text) for x in groups],
    }


def _describe_launch(plan: Plan, launch: Launch, region: PlanRegion) -> tuple[object, ...]:
    """Make the row of a launch: name, engine, device, number of nodes, operators, inputs and outputs."""
    from xrt.html.views import list_operators

    inputs, outputs = (", ".join(map(str, x)) or "nothing" for x in (launch.function.inputs, launch.function.outputs))
    return launch.name, launch.engine, plan.get_device(launch), len(launch.nodes), list_operators(region), inputs, outputs


def color_engines(engines: Iterable[str]) -> dict[str, str]:
    """Map engine names or specs to colors: the declared color of the engine, unless another engine has it already."""
    from xrt.engines.contract.registry import find_declaration
    from xrt.html.views import assign_colors

    return assign_colors(engines, lambda name: find_declaration(name).color)


def list_regions(plan: Plan) -> tuple[PlanRegion, ...]:
    """Describe the regions of a plan, in execution order, for diagrams."""
    from xrt.html.views import PlanRegion, RegionInput

    index_of = {launch.name: index for index, launch in enumerate(plan.launches)}
    producers = {value: index for index, launch in enumerate(plan.launches) for value in launch.outputs}
    outputs = {value.name for value in plan.function.outputs}
    return tuple(
        PlanRegion(
            launch.name,
            launch.engine,
            len(launch.nodes),
            tuple(Counter(node.op for node in launch.function.nodes).most_common()),
            (*_list_readings(launch, producers), *(RegionInput(index_of[before], "") for before in launch.control)),
            not outputs.isdisjoint(launch.outputs),
        )
        for launch in plan.launches
    )


def _list_readings(launch: Launch, producers: dict[str, int]) -> Iterator[RegionInput]:
    from xrt.html.views import INPUTS, RegionInput

    for name, value in zip(launch.inputs, launch.function.inputs, strict=True):
        nbytes = value.type.nbytes if isinstance(value.type, TensorType) else None
        yield RegionInput(producers.get(name, INPUTS), str(value), nbytes)
