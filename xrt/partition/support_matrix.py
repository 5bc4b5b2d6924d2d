"""Which engines support which nodes, and why others do not; the devices of the engines."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from xrt.graph import Attribute, AttrKind, FrozenDict, Function, Node, Type

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler


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
    supporting_engines: Sequence[tuple[int, ...]]
    """For each node, the indices of the engines that support it, by priority."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], device_map: DeviceMap) -> SupportMatrix:
        """Query every engine about every class of nodes. ``device_map`` has the devices of nodes that require none.

        An engine that raises an exception, or returns neither a string nor None, does not support the node; the reason says so.
        Linear in the nodes; one call of `why_not` per engine and class.
        """
        class_of, examples = classify_nodes(function)
        by_engine = [query_engine(engine, device_map.get_device(engine.spec), examples, function) for engine in engines]
        by_class = tuple(tuple(reasons[index] for reasons in by_engine) for index in range(len(examples)))
        supporting = [tuple(i for i, reason in enumerate(row) if reason is None) for row in by_class]
        return cls(class_of, by_class, [supporting[index] for index in class_of])

    def reason(self, node: int, engine: int) -> str | None:
        """Explain why the engine does not support the node, or return None if it does."""
        return self.reasons[self.class_of[node]][engine]


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


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The device on which each engine runs nodes that require no device."""

    device: str = "cpu"
    """The plan's device: of inputs and outputs, and of engines without an entry in ``by_engine``."""
    by_engine: Mapping[str, str] = FrozenDict()
    """Engine spec to device."""

    def get_device(self, spec: str) -> str:
        return self.by_engine.get(spec, self.device)
