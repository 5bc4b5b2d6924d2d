"""Which engines may run which nodes, and otherwise the reason: the engines' support, pins, and refusals to compile."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import OptionError, PlanError, did_you_mean
from xrt.graph import Attribute, AttrKind, FrozenDict, Function, Node, Type
from xrt.graph.device_names import normalize_device, parse_device_kind
from xrt.graph.schemas import latest_version

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.partition.options import Pin


@dataclass(frozen=True, slots=True)
class SupportMatrix:
    """For each node and engine the reason why the engine does not support the node, or None if it does.

    Nodes that differ only in names form a class: they have the same operator, attributes, types, constants, used outputs, and
    device. Each engine is queried once per class.
    """

    class_of: Sequence[int]
    """For each node of the Function, the index of its class."""
    answers: tuple[tuple[str | None, ...], ...]
    """For each class, one reason or None per engine."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], device: str | DeviceMap) -> SupportMatrix:
        """Query every engine about every class of nodes. ``device`` is the default device of nodes, or a DeviceMap.

        If an engine raises, or returns neither a string nor None, it does not support the node, with this as the reason. Linear
        in the nodes; one call of `why_not` per engine and class.
        """
        device_map, (class_of, examples) = DeviceMap.from_device(device), classify_nodes(function)
        by_engine = [query_engine(engine, device_map.of(engine.spec), examples, function) for engine in engines]
        return cls(class_of, tuple(tuple(answers[number] for answers in by_engine) for number in range(len(examples))))

    def reason(self, node: int, engine: int) -> str | None:
        """Explain why the engine does not support the node, or return None if it does."""
        return self.answers[self.class_of[node]][engine]

    def supporting_engines(self) -> list[tuple[int, ...]]:
        """For each node, the indices of the engines that support it, by priority."""
        by_class = [tuple(i for i, reason in enumerate(row) if reason is None) for row in self.answers]
        return [by_class[number] for number in self.class_of]


def classify_nodes(function: Function) -> tuple[Sequence[int], tuple[Node, ...]]:
    """Group nodes that an engine cannot distinguish: return the class index of each node, and the first node of each class."""
    classes = _NodeClasses(function)
    class_of = array("l")
    examples: list[Node] = []
    for node in function.nodes:
        class_index = classes.find_class(node)
        class_of.append(class_index)
        if class_index == len(examples):
            examples.append(node)
    return class_of, tuple(examples)


def query_engine(engine: GraphCompiler, home: str, nodes: Sequence[Node], function: Function) -> list[str | None]:
    """List for each node why the engine does not support it, or None. ``home`` is the device of nodes that require none."""
    answers: list[str | None] = []
    for node in nodes:
        device = node.device or home
        if device.partition(":")[0] not in engine.devices:
            answers.append(f"the node runs on {device}; engine {engine.name!r} runs on {', '.join(engine.devices)}")
            continue
        # For engines, an empty device means cpu.
        placed = node if device in (node.device, "cpu") else replace(node, device=device)
        try:
            answer: object = engine.why_not(placed, function)
        except Exception as error:  # noqa: BLE001  # a broken engine must not break the plan
            answer = f"engine {engine.name!r} failed when queried: {type(error).__name__}: {error}"
        if answer is None or (isinstance(answer, str) and answer):
            answers.append(answer)
        else:
            answers.append(f"engine {engine.name!r} returned {answer!r} when queried, which is neither a reason nor None")
    return answers


TYPE_ONLY_OPERATORS = frozenset({"Shape", "Size"})
"""Operators whose result may depend only on the type of their input."""


class _NodeClasses:
    """Assigns class indices to nodes: nodes that an engine cannot distinguish share one. Query in topological order."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._value_keys: dict[str, _ValueKey] = {"": 0}
        self._numbers: dict[tuple[object, ...], int] = {}

    def find_class(self, node: Node) -> int:
        """Find the index of the node's class; a new class has the next index."""
        inputs = node.inputs
        input_keys = tuple(map(self._find_value_key, inputs))
        output_keys = tuple(map(self._find_value_key, node.outputs))
        # `Add(x, x)` and `Add(x, y)` are different classes, even if the types are equal.
        same = tuple(map(inputs.index, inputs)) if len(set(inputs)) < len(inputs) else ()
        # Engines decline some operators only if an optional output is read.
        read = tuple(name in self._read for name in node.outputs) if len(output_keys) > 1 else ()
        attributes = tuple(map(_make_attribute_key, node.attributes))
        key = (node.op_type, node.domain, node.device, input_keys, output_keys, same, read, attributes)
        if node.op_type in TYPE_ONLY_OPERATORS or all(isinstance(value_key, str | int) for value_key in input_keys):
            # Computed only from constants or types, so an engine may look at how: the name identifies the computation.
            self._value_keys.update((name, name) for name in node.defined_names)
        return self._numbers.setdefault(key, len(self._numbers))

    def _find_value_key(self, name: str) -> _ValueKey:
        if name in self._value_keys:
            return self._value_keys[name]
        # The id of a constant, so its content need not be hashed.
        constant = self._function.constants.get(name)
        value_key = self._value_keys[name] = self._function.get_type(name) if constant is None else id(constant)
        return value_key

    @cached_property
    def _read(self) -> set[str]:
        """Values that are read by a node or are outputs."""
        read = {value.name for value in self._function.outputs}
        read.update(name for node in self._function.nodes for name in node.uses)
        return read


_ValueKey: TypeAlias = "Type | int | str | None"
"""Key of a value when nodes are grouped into classes. Normally its type. For a constant its `id`, because an engine may read the
content. For a value computed only from constants or types (such as a Shape) its name, because an engine may inspect how."""
_BY_IDENTITY = frozenset({AttrKind.TENSOR, AttrKind.TENSORS, AttrKind.GRAPH, AttrKind.GRAPHS})


def _make_attribute_key(attribute: Attribute) -> tuple[object, ...]:
    """Key of an attribute: the `id` of a large value, the `repr` of others, because ``1 == True`` and ``0.0 == -0.0``."""
    if attribute.kind in _BY_IDENTITY:
        return (attribute.name, id(attribute.value))
    return (attribute.name, attribute.kind, repr(attribute.value))


Refused: TypeAlias = tuple[str, str, str]
"""A node's name, the spec of an engine that refused to compile it, and the reason."""
Exclusions: TypeAlias = dict[tuple[int, int], str]
"""Index pair (node, engine) to the reason why the node must not run there, even if the engine supports it."""
MAX_LISTED_NODES = 20  # in an error


@dataclass(frozen=True, slots=True)
class EligibleEngines:
    """The engines that may run each node, and the reasons why the others may not."""

    engines: tuple[str, ...]
    capability: SupportMatrix
    exclusions: Mapping[tuple[int, int], str]
    """Index pair (node, engine) to the reason: a refusal, a pin, or state that the engine would copy."""
    updating_engines: Mapping[tuple[int, int], str] = FrozenDict()
    """The pairs (node, engine) excluded because of state, to the spec of the engine that updates the state in place."""

    @classmethod
    def of(
        cls,
        function: Function,
        engines: Sequence[GraphCompiler],
        pins: Sequence[Pin],
        refused: Sequence[Refused],
        device: str | DeviceMap,
        capability: SupportMatrix | None = None,
    ) -> EligibleEngines:
        """Combine the engines' support of nodes, refusals and pins. Engines are queried if ``capability`` is None.

        Raises OptionError for a refusal of an unlisted engine or unknown node, and PlanError for a pin that matches no node.
        """
        specs = tuple(engine.spec for engine in engines)
        exclusions = _list_pin_exclusions(function, [(engine.name, engine.spec) for engine in engines], pins)
        exclusions.update(_list_refusal_exclusions(function, specs, refused))
        return cls(specs, capability or SupportMatrix.of(function, engines, device), exclusions)

    def candidates(self) -> list[tuple[int, ...]]:
        """For each node, the indices of the engines that may run it, by priority."""
        candidates = self.capability.supporting_engines()
        for node, engine in self.exclusions:
            candidates[node] = tuple(e for e in candidates[node] if e != engine)
        return candidates

    def reason(self, node: int, engine: int) -> str | None:
        """Explain why the node may not run on the engine, or return None if it may."""
        return self.exclusions.get((node, engine)) or self.capability.reason(node, engine)

    def reasons(self, node: int) -> str:
        """The reasons of all engines for a node that none may run, in one line."""
        return "; ".join(f"{spec}: {self.reason(node, engine)}" for engine, spec in enumerate(self.engines))


def check_all_supported(
    function: Function, choices: EligibleEngines, candidates: Sequence[tuple[int, ...]], pins: Sequence[Pin], strict: bool
) -> None:
    """Raise PlanError if a node has no candidate; it lists all such nodes with each engine's reason."""
    unsupported = [node for node, engines in enumerate(candidates) if not engines]
    if not unsupported:
        return
    count = f"{len(unsupported)} of {len(function.nodes)} node{'s' * (len(function.nodes) != 1)}"
    broken_pins = [pin for pin in pins if any(pin.matches(pin.subject(function.nodes[n])) for n in unsupported)]
    if broken_pins:
        message = f"{', '.join(repr(str(pin)) for pin in broken_pins)} cannot be satisfied: no engine is left for {count}"
        advice = "change the pin, or list an engine that takes them"
    else:
        message = f"no engine of the list ({', '.join(choices.engines)}) takes {count}"
        reference_may = strict and any(
            latest_version(function.nodes[n].domain) for n in unsupported
        )  # the reference knows no other domain
        advice = "list an engine that takes them" + (
            ", or leave out strict=True so that the reference engine may" * reference_may
        )
    lines = [
        f"\n  {function.nodes[n].name!r} ({function.nodes[n].op}): {choices.reasons(n)}" for n in unsupported[:MAX_LISTED_NODES]
    ]
    more = f"\n  and {len(unsupported) - MAX_LISTED_NODES} more" if len(unsupported) > MAX_LISTED_NODES else ""
    unsupported_names = () if broken_pins else tuple(function.nodes[n].name for n in unsupported)
    raise PlanError(f"{message}; {advice}:{''.join(lines)}{more}", unsupported_names)


# ------------------------------------------------------------------ refusals


def _list_refusal_exclusions(function: Function, specs: Sequence[str], refused: Sequence[Refused]) -> Exclusions:
    if not refused:
        return {}
    index_of = {node.name: index for index, node in enumerate(function.nodes)}
    exclusions: Exclusions = {}
    for node, engine, reason in refused:
        if engine not in specs:
            raise OptionError(
                f"a refusal names engine {engine!r}, which is not in the list: {', '.join(specs)}.{did_you_mean(engine, specs)}"
            )
        if node not in index_of:
            raise OptionError(
                f"a refusal names node {node!r}, which is not in function {function.name!r}.{did_you_mean(node, index_of)}"
            )
        exclusions[index_of[node], specs.index(engine)] = reason
    return exclusions


# ------------------------------------------------------------------ pins


def _list_pin_exclusions(function: Function, engines: Sequence[tuple[str, str]], pins: Sequence[Pin]) -> Exclusions:
    """List the exclusions that follow from pins; ``engines`` are (name, spec) pairs."""
    exclusions: Exclusions = {}
    for node, pin in _match_pins(function, pins):
        for engine, (name, spec) in enumerate(engines):
            if pin.covers(name, spec) is pin.forbid:
                exclusions.setdefault(
                    (node, engine), f"{'kept from' if pin.forbid else 'pinned to'} {pin.engine} by {str(pin)!r}"
                )
    return exclusions


def _match_pins(function: Function, pins: Sequence[Pin]) -> Iterator[tuple[int, Pin]]:
    """Yield (node, pin) pairs: for each node, all matching pins that forbid, and of those that force only the last.

    Raises PlanError for a pin that matches no node.
    """
    nodes = {pin.by: _group_by_subject(function, pin) for pin in {pin.by: pin for pin in pins}.values()}
    forced: dict[int, Pin] = {}
    for pin in pins:
        matching = list(pin.match(nodes[pin.by]))
        if not matching:
            hint = did_you_mean(pin.patterns[0], nodes[pin.by])
            raise PlanError(f"pin {str(pin)!r} matches no node of function {function.name!r}.{hint}")
        matched = [node for subject in matching for node in nodes[pin.by][subject]]
        if pin.forbid:
            yield from ((node, pin) for node in matched)
        else:
            forced.update(dict.fromkeys(matched, pin))
    yield from forced.items()


def _group_by_subject(function: Function, pin: Pin) -> dict[str, list[int]]:
    """Map operators, or names if the pin matches by name, to the indices of their nodes."""
    nodes: dict[str, list[int]] = {}
    for index, node in enumerate(function.nodes):
        nodes.setdefault(pin.subject(node), []).append(index)
    return nodes


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The device of each engine, for nodes that do not require one."""

    device: str = "cpu"
    """The plan's device: for inputs and outputs, and for engines without an entry in ``by_engine``."""
    by_engine: Mapping[str, str] = FrozenDict()

    @classmethod
    def from_device(cls, device: str | DeviceMap) -> DeviceMap:
        """Convert a device name to a DeviceMap with this device for all engines; a DeviceMap is returned unchanged."""
        return device if isinstance(device, DeviceMap) else cls(device)

    def of(self, spec: str) -> str:
        return self.by_engine.get(spec, self.device)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Determines the device of each node for a choice of engines."""

    function: Function
    specs: Sequence[str]
    homes: DeviceMap
    required: tuple[str, ...]
    """The normalized device that each node requires; empty if none."""
    support_elsewhere: Sequence[SupportMatrix]
    """Support of nodes on each kind of device that some node requires and that is not the plan's."""

    @classmethod
    def query(cls, function: Function, engines: Sequence[GraphCompiler], homes: DeviceMap) -> NodeDevices:
        """Query the engines about the kinds of device that nodes require and that are not the plan's."""
        required = tuple(normalize_device(node.device) for node in function.nodes)
        others = sorted({parse_device_kind(name) for name in required if name} - {parse_device_kind(homes.device)})
        support_elsewhere = tuple(SupportMatrix.of(function, engines, kind) for kind in others)
        return cls(function, [engine.spec for engine in engines], homes, required, support_elsewhere)

    def devices(self, engines: Sequence[int]) -> list[str]:
        """The device of each node on its engine, given by index; empty if it may run on the device of its neighbors.

        A device that a node or the DeviceMap's entry for its engine requires is fixed. Any other node may run on the device of
        its neighbors if its engine supports it there, because this saves a copy.
        """
        # The common case: devices of one kind, and none requested for an engine.
        if not self.homes.by_engine and not self.support_elsewhere:
            return list(self.required)
        return [name or self._find_device(index, e) for index, (name, e) in enumerate(zip(self.required, engines, strict=True))]

    def _find_device(self, node: int, engine: int) -> str:
        device = self.homes.by_engine.get(self.specs[engine])
        if device is not None:
            return normalize_device(device)
        is_movable = all(support.reason(node, engine) is None for support in self.support_elsewhere)
        return "" if is_movable else normalize_device(self.homes.device)
