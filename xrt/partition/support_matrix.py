"""Which engines may run which nodes, and why others may not: support by the engines, pins, and refusals to compile."""

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
    """For each node and engine, None if the engine supports the node, or the reason why it does not.

    Nodes that differ only in names form a class: they have the same operator, attributes, types, constants, used outputs, and
    device. Each engine is queried once per class.
    """

    class_of: Sequence[int]
    """For each node of the Function, the index of its class."""
    reasons: tuple[tuple[str | None, ...], ...]
    """For each class, a reason or None per engine."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], device: str | DeviceMap) -> SupportMatrix:
        """Query every engine about every class of nodes. ``device`` is the default device of nodes, or a DeviceMap.

        An engine that raises an exception, or returns neither a string nor None, does not support the node; the reason says so.
        Linear in the nodes; one call of `why_not` per engine and class.
        """
        device_map = DeviceMap.from_device(device)
        class_of, examples = classify_nodes(function)
        by_engine = [query_engine(engine, device_map.get_device(engine.spec), examples, function) for engine in engines]
        by_class = tuple(tuple(reasons[index] for reasons in by_engine) for index in range(len(examples)))
        return cls(class_of, by_class)

    def reason(self, node: int, engine: int) -> str | None:
        """Explain why the engine does not support the node, or return None if it does."""
        return self.reasons[self.class_of[node]][engine]

    def list_supporting_engines(self) -> list[tuple[int, ...]]:
        """List for each node the indices of the engines that support it, by priority."""
        by_class = [tuple(i for i, reason in enumerate(row) if reason is None) for row in self.reasons]
        return [by_class[index] for index in self.class_of]


def classify_nodes(function: Function) -> tuple[Sequence[int], tuple[Node, ...]]:
    """Group nodes into classes: return the class index of each node, and the first node of each class."""
    classes = _NodeClasses(function)
    class_of = array("l")
    examples: list[Node] = []
    for node in function.nodes:
        class_index = classes.find_class(node)
        class_of.append(class_index)
        if class_index == len(examples):
            examples.append(node)
    return class_of, tuple(examples)


def query_engine(engine: GraphCompiler, default_device: str, nodes: Sequence[Node], function: Function) -> list[str | None]:
    """List for each node why the engine does not support it, or None. A node without a device runs on ``default_device``."""
    reasons: list[str | None] = []
    for node in nodes:
        device = node.device or default_device
        if device.partition(":")[0] not in engine.devices:
            reasons.append(f"the node runs on {device}; engine {engine.name!r} runs on {', '.join(engine.devices)}")
            continue
        # For engines, an empty device means cpu.
        placed = node if device in (node.device, "cpu") else replace(node, device=device)
        try:
            reason: object = engine.why_not(placed, function)
        except Exception as error:  # noqa: BLE001  # a broken engine must not break the plan
            reason = f"engine {engine.name!r} failed when queried: {type(error).__name__}: {error}"
        if reason is None or (isinstance(reason, str) and reason):
            reasons.append(reason)
        else:
            reasons.append(f"engine {engine.name!r} returned {reason!r} when queried, which is neither a reason nor None")
    return reasons


TYPE_ONLY_OPERATORS = frozenset({"Shape", "Size"})
"""Operators whose result may depend only on the type of their input."""


class _NodeClasses:
    """Assigns class indices to nodes; see `SupportMatrix`. Call `find_class` for the nodes in topological order."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._value_keys: dict[str, _ValueKey] = {"": 0}
        self._class_indices: dict[tuple[object, ...], int] = {}

    def find_class(self, node: Node) -> int:
        """Find the index of the node's class; a new class has the next index."""
        inputs = node.inputs
        input_keys = tuple(map(self._find_value_key, inputs))
        output_keys = tuple(map(self._find_value_key, node.outputs))
        # `Add(x, x)` and `Add(x, y)` are different classes, even if the types are equal.
        repetitions = tuple(map(inputs.index, inputs)) if len(set(inputs)) < len(inputs) else ()
        # Engines decline some operators only if an optional output is read.
        are_read = tuple(name in self._read_values for name in node.outputs) if len(output_keys) > 1 else ()
        attributes = tuple(map(_make_attribute_key, node.attributes))
        key = (node.op_type, node.domain, node.device, input_keys, output_keys, repetitions, are_read, attributes)
        if node.op_type in TYPE_ONLY_OPERATORS or all(isinstance(value_key, str | int) for value_key in input_keys):
            # The outputs follow from constants (int keys), other such values (str keys) or a type. An engine may evaluate them,
            # and their contents differ even if their types are equal. So the key of each is its name.
            self._value_keys.update((name, name) for name in node.defined_names)
        return self._class_indices.setdefault(key, len(self._class_indices))

    def _find_value_key(self, name: str) -> _ValueKey:
        if name in self._value_keys:
            return self._value_keys[name]
        # A constant is identified by its id, because hashing the content takes longer.
        constant = self._function.constants.get(name)
        value_key = self._value_keys[name] = self._function.get_type(name) if constant is None else id(constant)
        return value_key

    @cached_property
    def _read_values(self) -> set[str]:
        """Names of the values that a node reads or the Function returns."""
        names = {value.name for value in self._function.outputs}
        names.update(name for node in self._function.nodes for name in node.uses)
        return names


_ValueKey: TypeAlias = "Type | int | str | None"
"""Two inputs with equal keys are equal for an engine. The key is usually the type. For a constant it is the `id`, because an
engine may read the content. For a value computed only from constants or types (such as a Shape) it is the name."""
_LARGE_KINDS = frozenset({AttrKind.TENSOR, AttrKind.TENSORS, AttrKind.GRAPH, AttrKind.GRAPHS})


def _make_attribute_key(attribute: Attribute) -> tuple[object, ...]:
    """Make a key from the `id` of a large value, or from the `repr` of another, because ``1 == True`` and ``0.0 == -0.0``."""
    if attribute.kind in _LARGE_KINDS:
        return (attribute.name, id(attribute.value))
    return (attribute.name, attribute.kind, repr(attribute.value))


Refused: TypeAlias = tuple[str, str, str]
"""(Name of a node, spec of an engine that refused to compile the node, reason)."""
Exclusions: TypeAlias = dict[tuple[int, int], str]
"""(Node index, engine index) to the reason why the node must not run on the engine, even if the engine supports it."""
MAX_LISTED_NODES = 20  # in an error text


@dataclass(frozen=True, slots=True)
class EligibleEngines:
    """The engines that may run each node, and the reasons why other engines may not."""

    engines: tuple[str, ...]
    """Specs, by priority."""
    capability: SupportMatrix
    exclusions: Mapping[tuple[int, int], str]
    """See `Exclusions`: because of refusals, pins, or state that the engine would copy."""
    updating_engines: Mapping[tuple[int, int], str] = FrozenDict()
    """For exclusions because of state: (node index, engine index) to the spec of the engine that updates the state in place."""

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
        """Combine support of nodes, refusals and pins. The engines are queried if ``capability`` is None.

        Raises OptionError for a refusal of an unlisted engine or unknown node, and PlanError for a pin that matches no node.
        """
        specs = tuple(engine.spec for engine in engines)
        exclusions = _list_pin_exclusions(function, [(engine.name, engine.spec) for engine in engines], pins)
        exclusions.update(_list_refusal_exclusions(function, specs, refused))
        return cls(specs, capability or SupportMatrix.of(function, engines, device), exclusions)

    def candidates(self) -> list[tuple[int, ...]]:
        """List for each node the indices of the engines that may run it, by priority."""
        candidates = self.capability.list_supporting_engines()
        for node, excluded_engine in self.exclusions:
            candidates[node] = tuple(engine for engine in candidates[node] if engine != excluded_engine)
        return candidates

    def reason(self, node: int, engine: int) -> str | None:
        """Explain why the node may not run on the engine, or return None if it may."""
        return self.exclusions.get((node, engine)) or self.capability.reason(node, engine)

    def format_reasons(self, node: int) -> str:
        """Format the reasons of all engines in one line, for a node that no engine may run."""
        return "; ".join(f"{spec}: {self.reason(node, engine)}" for engine, spec in enumerate(self.engines))


def check_all_supported(
    function: Function, choices: EligibleEngines, candidates: Sequence[tuple[int, ...]], pins: Sequence[Pin], strict: bool
) -> None:
    """Raise PlanError if nodes have no candidate; the error lists the nodes with the reason of each engine."""
    unsupported = [index for index, engines in enumerate(candidates) if not engines]
    if not unsupported:
        return
    nodes = [function.nodes[index] for index in unsupported]
    count = f"{len(nodes)} of {len(function.nodes)} {'node' if len(function.nodes) == 1 else 'nodes'}"
    broken_pins = [pin for pin in pins if any(pin.matches(pin.get_subject(node)) for node in nodes)]
    if broken_pins:
        message = f"{', '.join(repr(str(pin)) for pin in broken_pins)} cannot be satisfied: no engine is left for {count}"
        advice = "change the pin, or list an engine that takes them"
    else:
        message = f"no engine of the list ({', '.join(choices.engines)}) takes {count}"
        advice = "list an engine that takes them"
        # The reference engine supports only domains that onnx describes.
        if strict and any(latest_version(node.domain) for node in nodes):
            advice += ", or leave out strict=True so that the reference engine may"
    listed = list(zip(unsupported, nodes, strict=True))[:MAX_LISTED_NODES]
    lines = [f"\n  {node.name!r} ({node.op}): {choices.format_reasons(index)}" for index, node in listed]
    more = f"\n  and {len(nodes) - MAX_LISTED_NODES} more" if len(nodes) > MAX_LISTED_NODES else ""
    unsupported_names = () if broken_pins else tuple(node.name for node in nodes)
    raise PlanError(f"{message}; {advice}:{''.join(lines)}{more}", unsupported_names)


def _list_refusal_exclusions(function: Function, specs: Sequence[str], refused: Sequence[Refused]) -> Exclusions:
    if not refused:
        return {}
    index_of = {node.name: index for index, node in enumerate(function.nodes)}
    exclusions: Exclusions = {}
    for node, engine, reason in refused:
        if engine not in specs:
            hint = did_you_mean(engine, specs)
            raise OptionError(f"a refusal names engine {engine!r}, which is not in the list: {', '.join(specs)}.{hint}")
        if node not in index_of:
            hint = did_you_mean(node, index_of)
            raise OptionError(f"a refusal names node {node!r}, which is not in function {function.name!r}.{hint}")
        exclusions[index_of[node], specs.index(engine)] = reason
    return exclusions


def _list_pin_exclusions(function: Function, engines: Sequence[tuple[str, str]], pins: Sequence[Pin]) -> Exclusions:
    """List the exclusions that follow from pins; ``engines`` are (name, spec) pairs."""
    exclusions: Exclusions = {}
    for node, pin in _match_pins(function, pins):
        reason = f"{'kept from' if pin.forbid else 'pinned to'} {pin.engine} by {str(pin)!r}"
        for engine, (name, spec) in enumerate(engines):
            # A forbidding pin excludes its engine, a forcing pin all others.
            if pin.covers_engine(name, spec) is pin.forbid:
                exclusions.setdefault((node, engine), reason)
    return exclusions


def _match_pins(function: Function, pins: Sequence[Pin]) -> Iterator[tuple[int, Pin]]:
    """Yield (node index, pin) pairs: for each node all forbidding pins that match it, and the last forcing pin.

    Raises PlanError for a pin that matches no node.
    """
    # `Pin.by` to operators or names to node indices.
    indices: dict[str, dict[str, list[int]]] = {}
    forced: dict[int, Pin] = {}
    for pin in pins:
        if pin.by not in indices:
            indices[pin.by] = _group_by_subject(function, pin)
        by_subject = indices[pin.by]
        subjects = list(pin.find_matches(by_subject))
        if not subjects:
            hint = did_you_mean(pin.patterns[0], by_subject)
            raise PlanError(f"pin {str(pin)!r} matches no node of function {function.name!r}.{hint}")
        matched = [node for subject in subjects for node in by_subject[subject]]
        if pin.forbid:
            yield from ((node, pin) for node in matched)
        else:
            forced.update(dict.fromkeys(matched, pin))
    yield from forced.items()


def _group_by_subject(function: Function, pin: Pin) -> dict[str, list[int]]:
    """Map operators, or names if the pin matches by name, to node indices."""
    indices: dict[str, list[int]] = {}
    for index, node in enumerate(function.nodes):
        indices.setdefault(pin.get_subject(node), []).append(index)
    return indices


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The device on which each engine runs nodes that require no device."""

    device: str = "cpu"
    """The plan's device: of inputs and outputs, and of engines without an entry in ``by_engine``."""
    by_engine: Mapping[str, str] = FrozenDict()
    """Engine spec to device."""

    @classmethod
    def from_device(cls, device: str | DeviceMap) -> DeviceMap:
        """Convert a device name to a DeviceMap with this device for all engines; a DeviceMap is returned unchanged."""
        return device if isinstance(device, DeviceMap) else cls(device)

    def get_device(self, spec: str) -> str:
        return self.by_engine.get(spec, self.device)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Determines the device of each node for a choice of engines."""

    function: Function
    specs: Sequence[str]
    device_map: DeviceMap
    required: tuple[str, ...]
    """The normalized device that each node requires, or an empty string."""
    support_elsewhere: Sequence[SupportMatrix]
    """One matrix for each kind of device that some node requires, except the kind of the plan's device."""

    @classmethod
    def query(cls, function: Function, engines: Sequence[GraphCompiler], device_map: DeviceMap) -> NodeDevices:
        """Query the engines about the kinds of device that nodes require, except the kind of the plan's device."""
        required = tuple(normalize_device(node.device) for node in function.nodes)
        kinds = {parse_device_kind(name) for name in required if name} - {parse_device_kind(device_map.device)}
        support_elsewhere = tuple(SupportMatrix.of(function, engines, kind) for kind in sorted(kinds))
        return cls(function, [engine.spec for engine in engines], device_map, required, support_elsewhere)

    def list_devices(self, engines: Sequence[int]) -> list[str]:
        """List the device of each node on its engine, given by index; an empty string means the device of its neighbors.

        A device that the node requires, or that the DeviceMap has for the engine, is fixed. Any other node may run on the device
        of its neighbors if its engine supports it there, because this saves a copy.
        """
        # The common case: devices of one kind, and none requested for an engine.
        if not self.device_map.by_engine and not self.support_elsewhere:
            return list(self.required)
        pairs = enumerate(zip(self.required, engines, strict=True))
        return [device or self._find_device(index, engine) for index, (device, engine) in pairs]

    def _find_device(self, node: int, engine: int) -> str:
        device = self.device_map.by_engine.get(self.specs[engine])
        if device is not None:
            return normalize_device(device)
        is_movable = all(support.reason(node, engine) is None for support in self.support_elsewhere)
        return "" if is_movable else normalize_device(self.device_map.device)
