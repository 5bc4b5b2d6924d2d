"""Nodes, patterns that select nodes, nodes that call PyTorch operators without an ONNX equivalent, and renaming."""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from xrt.errors import ModelError, OptionError
from xrt.graph.attributes import Attribute, AttrKind
from xrt.graph.types import Value

if TYPE_CHECKING:
    from xrt.graph.function import Function


_GRAPH, _GRAPHS = AttrKind.GRAPH, AttrKind.GRAPHS


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call. An omitted input or output is the empty string. Nodes compare by content."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()
    """Attributes sorted by name; `read_attributes` creates them."""
    domain: str = ""
    """Domain of the operator; the empty string is ai.onnx."""
    name: str = ""
    """Unique name within the Function; if empty, the name of the first output is used."""
    control: tuple[str, ...] = ()
    """Names of nodes that must run before this one although it reads none of their outputs."""
    device: str = ""
    """Required device (``"cpu"``, ``"cuda:1"``); empty if any will do."""

    @property
    def op(self) -> str:
        """Operator qualified by its domain, unless that is ai.onnx: ``Conv``, ``com.microsoft.FusedConv``."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or ``default`` if the node does not have it."""
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute.value
        return default

    @property
    def bodies(self) -> tuple[Function, ...]:
        """Functions among the attributes: the branches of an If, the body of a Loop."""
        if not self.attributes:
            return ()  # the common case, on the hot path of every pass
        bodies: list[Function] = []
        for attribute in self.attributes:
            if attribute.kind is _GRAPH:
                bodies.append(attribute.value)
            elif attribute.kind is _GRAPHS:
                bodies += attribute.value
        return tuple(bodies)

    def map_bodies(self, change: Callable[[Function], Function]) -> Node:
        """Apply ``change`` to each body; return this node if all of them are unchanged."""
        if not self.bodies:
            return self
        attributes = tuple(attribute.map_bodies(change) for attribute in self.attributes)
        if all(new is old for new, old in zip(attributes, self.attributes, strict=True)):
            return self
        return replace(self, attributes=attributes)

    @property
    def captures(self) -> tuple[str, ...]:
        """Outer values that the bodies read, without duplicates, in order of first use."""
        bodies = self.bodies
        if not bodies:
            return ()
        return tuple(dict.fromkeys(name for body in bodies for name in body.captures))

    @property
    def uses(self) -> tuple[str, ...]:
        """All values read: the inputs (a value used twice appears twice), then the captures."""
        # Every pass reads this for every node: the common case copies nothing.
        inputs = tuple(filter(None, self.inputs)) if "" in self.inputs else self.inputs
        for attribute in self.attributes:
            if attribute.kind is _GRAPH or attribute.kind is _GRAPHS:
                return inputs + self.captures
        return inputs

    @property
    def defined_names(self) -> Iterator[str]:
        """Names of the outputs, without omitted ones."""
        return (name for name in self.outputs if name)

    def with_attributes(self, **changes: Any) -> Node:
        """Return a copy with these attributes set; the value None removes an attribute."""
        attributes = {a.name: a for a in self.attributes if a.name not in changes}
        attributes.update({name: Attribute.create(name, value) for name, value in changes.items() if value is not None})
        return replace(self, attributes=tuple(attributes[name] for name in sorted(attributes)))


def read_attributes(values: Mapping[str, Any]) -> tuple[Attribute, ...]:
    """Convert plain values to Attributes sorted by name; existing Attributes are not changed.

    >>> read_attributes({"axis": 1})
    (Attribute(name='axis', kind=<AttrKind.INT: 2>, value=1),)
    """
    return tuple(
        values[name] if isinstance(values[name], Attribute) else Attribute.create(name, values[name]) for name in sorted(values)
    )


OPERATOR_PATTERN = re.compile(r"[\w.*?-]+")
"""The syntax of an operator pattern."""
_PATTERN_HINT = "a pattern reads like 'Conv|Gemm' or 'name:/layer1/*'"


@lru_cache(maxsize=64)
def compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compile glob patterns to one regular expression, for ``fullmatch``; ``*`` matches any text, ``?`` one character."""
    # Node names contain brackets, so match them as characters: in a glob they start a set.
    return re.compile("|".join(fnmatch.translate(pattern.replace("[", "[[]")) for pattern in patterns))


@dataclass(frozen=True, slots=True)
class NodePattern:
    """Selects nodes by operator or by name.

    >>> NodePattern.parse("name:/layer1/*|/head")
    NodePattern(patterns=('/layer1/*', '/head'), by_name=True)
    """

    patterns: tuple[str, ...]
    """Glob patterns; a node matches if any of them matches its whole text."""
    by_name: bool = False
    """Match `Node.name` instead of `Node.op`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text such as ``Conv|Gemm`` or ``name:/layer1/*``; raises OptionError if it is malformed."""
        by_name = text.strip().startswith("name:")
        pattern_text = text.strip().removeprefix("name:")
        patterns = tuple(pattern.strip() for pattern in pattern_text.split("|"))
        if not all(patterns):
            raise OptionError(f"{text!r} is not a pattern of nodes; {_PATTERN_HINT}")
        for pattern in patterns:
            if not by_name and not OPERATOR_PATTERN.fullmatch(pattern):
                raise OptionError(f"{pattern!r} is no operator (letters, digits, '.', '*' and '?'); {_PATTERN_HINT}")
        return cls(patterns, by_name)

    def matches(self, node: Node) -> bool:
        return compile_patterns(self.patterns).fullmatch(node.name if self.by_name else node.op) is not None

    def __str__(self) -> str:
        prefix = "name:" if self.by_name else ""
        return prefix + "|".join(self.patterns)


ATEN_DOMAIN = "aten"
"""Domain of opaque PyTorch operators, at version 1, regardless of the operator's namespace."""
TAG_KINDS = ("tensor", "number", "dtype", "device", "layout", "memory_format", "float", "complex")


@dataclass(frozen=True, slots=True)
class Tagged:
    """An argument of an opaque call that JSON cannot represent directly.

    ``value`` depends on ``kind``. ``tensor``: index of the node input. ``number``: index of a 0-d input that is passed as a
    Python number (a symbolic size). ``dtype``, ``device``, ``layout``, ``memory_format``: PyTorch's name without ``torch.``
    (``float32``, ``cpu``, ``strided``, ``contiguous_format``). ``float``: ``inf``, ``-inf`` or ``nan``. ``complex``: a list of
    the real and the imaginary part.
    """

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """A call of a PyTorch operator without an ONNX equivalent. Arguments are None, bool, int, float, str, lists or `Tagged`.

    The node has the domain `ATEN_DOMAIN`. Its attributes are ``operator``, PyTorch's name such as ``aten::fft_rfft.default``;
    ``call``, JSON of ``{"args": [...], "kwargs": {...}}`` where a Tagged is an object with its kind as the only key; and
    ``reason``, why there is no ONNX equivalent.

    The operator must not modify its inputs. A tuple or list of results becomes one output per element; a result that is None or
    unused is omitted. A Python number becomes a 0-d tensor of int64, float64 or bool.
    """

    operator: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def op_type(self) -> str:
        """Operator type of the node: the name as an identifier, ``aten_fft_rfft_default``."""
        return re.sub(r"\W+", "_", self.operator)

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of the node that makes this call."""
        call = {
            "args": [_encode(item) for item in self.args],
            "kwargs": {k: _encode(self.kwargs[k]) for k in sorted(self.kwargs)},
        }
        return {"operator": self.operator, "call": json.dumps(call), "reason": self.reason}

    @classmethod
    def read(cls, node: Node) -> OpaqueCall:
        """Decode the call from a node; raises ModelError if the attributes are malformed."""
        operator = node.attr("operator")
        try:
            # The text comes from a file: it may be anything, also deeply nested.
            call = json.loads(node.attr("call"))
            args = tuple(_decode(item) for item in call["args"])
            kwargs = {name: _decode(item) for name, item in call["kwargs"].items()}
        except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
            raise ModelError(f"node {node.name!r} ({node.op}) does not describe a call of an operator: {error}") from error
        if not isinstance(operator, str):
            raise ModelError(f"node {node.name!r} ({node.op}) has no attribute 'operator'")
        return cls(operator, args, kwargs, node.attr("reason", ""))

    def resolve(self, change: Callable[[Tagged], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Replace each `Tagged` argument by ``change(tagged)``; ``float`` and ``complex`` become Python numbers."""

        def resolve_item(item: Any) -> Any:
            if isinstance(item, list):
                return [resolve_item(inner) for inner in item]
            if not isinstance(item, Tagged):
                return item
            if item.kind == "float":
                return float(item.value)
            return complex(*item.value) if item.kind == "complex" else change(item)

        args = [resolve_item(item) for item in self.args]
        return args, {name: resolve_item(item) for name, item in self.kwargs.items()}


def _encode(item: Any) -> Any:
    if isinstance(item, Tagged):
        return {item.kind: item.value}
    if isinstance(item, list | tuple):
        return [_encode(inner) for inner in item]
    # JSON has no infinities and no NaN.
    if isinstance(item, float) and not math.isfinite(item):
        return {"float": str(item)}
    if isinstance(item, complex):
        return {"complex": [item.real, item.imag]}
    if item is None or isinstance(item, bool | int | float | str):
        return item
    raise ModelError(f"an argument of an opaque operator is a {type(item).__name__}, {item!r}, which no attribute holds")


def _decode(item: Any) -> Any:
    if isinstance(item, list):
        return [_decode(inner) for inner in item]
    if not isinstance(item, dict):
        return item
    ((kind, value),) = item.items()
    if kind not in TAG_KINDS:
        raise ValueError(f"{kind!r} is no kind of argument")
    return Tagged(kind, value)


class FreshNames:
    """Generates names that are not in use.

    A trace and its bodies share one instance, so that a body never shadows an outer value.
    """

    def __init__(self, used: Iterable[str] = (), start: int = 1) -> None:
        self._used = Counter(used)  # both branches of an If may define the same name
        self._start = start
        """The first number appended to a name in use."""
        self._counts: dict[str, int] = {}

    @classmethod
    def for_function(cls, function: Function) -> Self:
        """Create a generator of names that a Function and its bodies do not use: ONNX forbids shadowing outer names."""
        return cls((*list_definitions(function), *function.captures), start=2)

    def __contains__(self, name: str) -> bool:
        return name in self._used

    def reserve(self, name: str) -> str:
        """Reserve and return a name, which must be free."""
        self._used[name] = 1
        return name

    def release(self, name: str) -> None:
        """Free a name, unless it is in use more than once."""
        self._used[name] -= 1
        if self._used[name] <= 0:
            del self._used[name]

    def take(self, name: str) -> str:
        """Reserve and return ``name``, with a number appended if it is in use."""
        return self.take_numbered(name) if name in self._used else self.reserve(name)

    def take_numbered(self, base: str) -> str:
        """Reserve and return the first free name of ``base_1``, ``base_2``, ..."""
        count = self._counts.get(base, self._start)
        while f"{base}_{count}" in self._used:
            count += 1
        self._counts[base] = count + 1
        return self.reserve(f"{base}_{count}")

    def mark(self) -> tuple[int, dict[str, int]]:
        """Return a savepoint, from which `rewind` restores the names in use."""
        return len(self._used), dict(self._counts)

    def rewind(self, mark: tuple[int, dict[str, int]]) -> None:
        """Free all names reserved since ``mark``."""
        size, self._counts = mark
        # A dict keeps insertion order, so the newest names are removed.
        while len(self._used) > size:
            self._used.popitem()


def list_definitions(function: Function) -> Iterator[str]:
    """Yield every value name defined by the Function or a nested body, possibly more than once."""
    yield from function.value_names()
    for node in function.nodes:
        for body in node.bodies:
            yield from list_definitions(body)


def list_names(function: Function) -> Iterator[str]:
    """Yield all names of values and nodes, captures and bodies included, possibly more than once."""
    yield from function.value_names()
    yield from function.captures
    for node in function.nodes:
        yield node.name
        for body in node.bodies:
            yield from list_names(body)


def rename_node(node: Node, values: Mapping[str, str], nodes: Mapping[str, str]) -> Node:
    """Rename a node, its values and control predecessors, also in bodies; ``values`` and ``nodes`` map old to new names."""
    # Bodies are renamed by the same mapping, because a name in a body never shadows an outer name.
    return replace(
        node,
        inputs=tuple(values.get(n, n) for n in node.inputs),
        outputs=tuple(values.get(n, n) for n in node.outputs),
        attributes=tuple(a.map_bodies(lambda body: rename_function(body, values, nodes)) for a in node.attributes),
        name=nodes.get(node.name, node.name),
        control=tuple(nodes.get(n, n) for n in node.control),
    )


def rename_function(function: Function, values: Mapping[str, str], nodes: Mapping[str, str]) -> Function:
    """Rename values and nodes everywhere in a Function, including bodies.

    The new names must not be in use. Linear.
    """

    def rename_value(value: Value) -> Value:
        return Value(values.get(value.name, value.name), value.type)

    return function.replace(
        inputs=tuple(map(rename_value, function.inputs)),
        outputs=tuple(map(rename_value, function.outputs)),
        nodes=tuple(rename_node(node, values, nodes) for node in function.nodes),
        constants={values.get(n, n): c for n, c in function.constants.items()},
        types={values.get(n, n): t for n, t in function.types.items()},
        aliases=tuple((values.get(i, i), values.get(o, o)) for i, o in function.aliases),
    )
