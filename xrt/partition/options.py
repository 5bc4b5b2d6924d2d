"""Options of the partitioner: cluster sizes, pins, and the devices of nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from xrt.engines.contract.options import check_options, option
from xrt.errors import OptionError
from xrt.graph.node import OPERATOR_PATTERN, compile_patterns

if TYPE_CHECKING:
    from xrt.graph import Node

PinSubject = Literal["operator", "name"]
_PIN = re.compile(r"(?P<patterns>.+?)(?P<relation>!?=)\s*(?P<engine>[A-Za-z_]\w*(\{.*\})?)", re.DOTALL)
_HELP = "a pin reads like 'Conv|Gemm=ort' (force), 'Softmax!=tvm' (forbid) or 'name:/layer1/*=ort' (by node name)"


@dataclass(frozen=True, slots=True)
class Pin:
    """Forces nodes, selected by operator or name, onto an engine, or forbids the engine for them.

    >>> str(Pin.parse("Conv | Gemm = ort"))
    'Conv|Gemm=ort'
    >>> Pin.parse("name:/head/*!=tvm")
    Pin(patterns=('/head/*',), engine='tvm', by='name', forbid=True)
    """

    patterns: tuple[str, ...]
    """Glob patterns; one of them must match the whole operator or name. ``*`` matches any string and ``?`` one character."""
    engine: str
    """The name of an engine, which includes all specs with this name, or a spec."""
    by: PinSubject = "operator"
    """Whether the patterns match `Node.op` (``Conv``, ``com.microsoft.FusedConv``) or `Node.name`."""
    forbid: bool = False
    """Forbid the engine instead of forcing the nodes onto it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", (self.patterns,) if isinstance(self.patterns, str) else tuple(self.patterns))
        if self.by not in get_args(PinSubject):
            raise OptionError(f"a pin matches by 'operator' or 'name'; got {self.by!r}")
        if not self.patterns or not all(self.patterns):
            raise OptionError(f"the pin to {self.engine!r} has no pattern for the {self.by}; {_HELP}")
        for pattern in self.patterns:
            if self.by == "operator" and not OPERATOR_PATTERN.fullmatch(pattern):
                raise OptionError(f"{pattern!r} is not an operator (letters, digits, '.', '*' and '?'); {_HELP}")

    @classmethod
    def parse(cls, text: str) -> Pin:
        """Parse a pin from a string such as ``Conv|Gemm=ort``; raises OptionError if it is malformed.

        Patterns are separated by ``|``. To pin a node name that contains ``|``, use the constructor.
        """
        match = _PIN.fullmatch(text.strip())
        if match is None:
            raise OptionError(f"{text!r} is not a pin; {_HELP}")
        names = match["patterns"].strip()
        is_by_name = names.startswith("name:")
        patterns = tuple(pattern.strip() for pattern in names.removeprefix("name:").split("|"))
        return cls(patterns, match["engine"], "name" if is_by_name else "operator", match["relation"] == "!=")

    def __str__(self) -> str:
        prefix = "name:" if self.by == "name" else ""
        return f"{prefix}{'|'.join(self.patterns)}{'!=' if self.forbid else '='}{self.engine}"

    def get_subject(self, node: Node) -> str:
        """Return the name of the node if the pin matches by name, else its operator."""
        return node.name if self.by == "name" else node.op

    def matches(self, subject: str) -> bool:
        return compile_patterns(self.patterns).fullmatch(subject) is not None

    def find_matches(self, subjects: Collection[str]) -> Iterable[str]:
        """Yield the ``subjects`` (operators or names) that match; a subject that matches two patterns is yielded twice."""
        for pattern in self.patterns:
            if "*" in pattern or "?" in pattern:
                yield from filter(compile_patterns((pattern,)).fullmatch, subjects)
            # Most pins have no wildcards, and a large model has many names: look the name up instead of searching.
            elif pattern in subjects:
                yield pattern

    def covers_engine(self, name: str, spec: str) -> bool:
        """Whether the pin is about the engine with this name and spec."""
        return self.engine in (name, spec)


@dataclass(frozen=True, slots=True)
class ClusteringOptions:
    """How nodes are grouped into regions; stored in the Plan. Raises OptionError for an invalid value."""

    minimum_nodes: int = option(1, at_least=1)
    """Dissolve regions of fewer nodes than this: their nodes move to the next engine that supports them, if any."""
    maximum_nodes: int | None = option(None, at_least=1)
    """Split regions of more nodes than this; None for no limit."""
    pins: tuple[Pin, ...] = option((), accepts="str | Pin | Sequence[str | Pin]")
    """Force or forbid an engine: ``'Conv|Gemm=ort'``, ``'Softmax!=tvm'``, ``'name:/layer1/*=ort'``. Of the forcing pins that
    match a node, the last one applies; forbidding pins accumulate."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.maximum_nodes is not None and self.maximum_nodes < self.minimum_nodes:
            raise OptionError(
                f"minimum_nodes={self.minimum_nodes} is more than maximum_nodes={self.maximum_nodes}; no cluster satisfies both"
            )
        object.__setattr__(self, "pins", tuple(_read_pin(pin) for pin in _list_pins(self.pins)))

    def __str__(self) -> str:
        # Plans print this text, so it only has options that differ from the default.
        default = ClusteringOptions()
        names = ("minimum_nodes", "maximum_nodes")
        shown = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != getattr(default, name)]
        return ", ".join([*shown, *(f"pin {str(pin)!r}" for pin in self.pins)])


def read_options(values: Mapping[str, Any]) -> ClusteringOptions:
    """Create options from the result of `dataclasses.asdict`; raises OptionError for an invalid value."""
    return ClusteringOptions(**{**values, "pins": tuple(Pin(**pin) for pin in values["pins"])})


def _list_pins(pins: object) -> Iterable[object]:
    if isinstance(pins, str | Pin):
        return (pins,)
    if isinstance(pins, Iterable):
        return pins
    raise OptionError(f"pins must be a list of pins or of their text; got {pins!r}")


def _read_pin(pin: object) -> Pin:
    if isinstance(pin, Pin):
        return pin
    if isinstance(pin, str):
        return Pin.parse(pin)
    raise OptionError(f"a pin is a Pin or its text; got {type(pin).__name__} {pin!r}; {_HELP}")
