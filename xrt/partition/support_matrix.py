"""Which engine can take which node, and why not."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from xrt.graph import Attribute, AttrKind, Function, Node, Type
from xrt.partition.questions import OF_TYPES

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler

__all__ = ["SupportMatrix", "ask_engine", "number_questions"]


@dataclass(frozen=True, slots=True)
class SupportMatrix:
    """The table of answers: for each node and engine a reason, or None if the engine supports the node.

    Nodes that differ only in names share one question: same operator, attributes, types, constants, outputs with a reader, and
    device. Each engine answers each question once.
    """

    questions: Sequence[int]
    """For each node, in the Function's order, the number of its question."""
    answers: tuple[tuple[str | None, ...], ...]
    """For each question the engines' answers, in the order of the engines."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], device: str | Sequence[str]) -> SupportMatrix:
        """Ask every engine about every distinct node; ``device`` is where nodes run that name none, of all engines or of each.

        An engine that raises, or answers with something else than text, is taken to decline, and that is the reason.
        Linear in the nodes; one call of `why_not` per engine and distinct node.
        """
        homes = (device,) * len(engines) if isinstance(device, str) else device
        questions, firsts = number_questions(function)
        return cls(
            questions, tuple(tuple(ask_engine(*one, n, function) for one in zip(engines, homes, strict=True)) for n in firsts)
        )

    def reason(self, node: int, engine: int) -> str | None:
        """Return why the engine cannot take the node; None when it can."""
        return self.answers[self.questions[node]][engine]

    def supporting_engines(self) -> list[tuple[int, ...]]:
        """Return for each node the engines that can take it, by priority."""
        by_question = [tuple(i for i, reason in enumerate(row) if reason is None) for row in self.answers]
        return [by_question[question] for question in self.questions]


def number_questions(function: Function) -> tuple[Sequence[int], tuple[Node, ...]]:
    """Return for each node the number of its question, and for each question the first node that asks it."""
    alike = _NodeClasses(function)
    questions = array("l")
    firsts: list[Node] = []
    for node in function.nodes:
        number = alike.number(node)
        questions.append(number)
        if number == len(firsts):
            firsts.append(node)
    return questions, tuple(firsts)


def ask_engine(engine: GraphCompiler, home: str, node: Node, function: Function) -> str | None:
    """Return why the engine cannot take the node there; None where it can. One that raises, or answers oddly, declines."""
    device = node.device or home
    if device.partition(":")[0] not in engine.devices:
        return f"the node runs on {device}; engine {engine.name!r} runs on {', '.join(engine.devices)}"
    placed = node if device in (node.device, "cpu") else replace(node, device=device)
    try:
        answer: object = engine.why_not(placed, function)
    except Exception as error:  # noqa: BLE001  # a broken engine must not break the plan
        return f"engine {engine.name!r} failed when asked: {type(error).__name__}: {error}"
    if answer is None or (isinstance(answer, str) and answer):
        return answer
    return f"engine {engine.name!r} answered {answer!r} when asked, which is neither a reason nor None"


class _NodeClasses:
    """Numbers nodes so that those that an engine cannot tell apart have one number; to be asked in topological order."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._types: dict[Type | None, int] = {}
        self._known_types: dict[int, int] = {}
        self._attributes: dict[int, tuple[object, ...]] = {}
        self._looks: dict[str, _Look] = {"": -1}
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, node: Node) -> int:
        """Return the number of the node's question: a new one is one more than all before."""
        inputs, known = node.inputs, self._looks
        look = [known[name] if name in known else self._look(name) for name in inputs]
        made = [known[name] if name in known else self._look(name) for name in node.outputs]
        same = tuple(map(inputs.index, inputs)) if len(set(inputs)) < len(inputs) else ()
        read = tuple(name in self._read for name in node.outputs) if len(made) > 1 else ()
        attributes = self._content(node.attributes) if node.attributes else ()
        key = (node.op_type, node.domain, node.device, tuple(look), tuple(made), same, read, attributes)
        if node.op_type in OF_TYPES or all(isinstance(one, str) or one < 0 for one in look):
            known.update((name, name) for name in node.defines)
        return self._numbers.setdefault(key, len(self._numbers))

    def _look(self, name: str) -> _Look:
        constant = self._function.constants.get(name)
        if constant is not None:
            look = -2 - id(constant)
        else:
            look = self._type(self._function.get_type(name))
        self._looks[name] = look
        return look

    def _type(self, type_: Type | None) -> int:
        """Number the type; by identity where it has been met, because hashing one costs more than all else here."""
        number = self._known_types.get(id(type_))
        if number is None:
            number = self._known_types[id(type_)] = self._types.setdefault(type_, len(self._types))
        return number

    def _content(self, attributes: tuple[Attribute, ...]) -> tuple[object, ...]:
        found = self._attributes.get(id(attributes))
        if found is None:
            found = self._attributes[id(attributes)] = tuple(map(_content, attributes))
        return found

    @cached_property
    def _read(self) -> set[str]:
        """The values that some node reads, or that are outputs."""
        read = {value.name for value in self._function.outputs}
        read.update(name for node in self._function.nodes for name in node.uses)
        return read


_Look: TypeAlias = int | str
"""What an engine may see of a value: its type (from 0 on), the constant that it is (below -1), or, for what is made of
constants or types alone, the value itself by its name, because an engine may look at how it is made."""

_BY_IDENTITY = frozenset({AttrKind.TENSOR, AttrKind.TENSORS, AttrKind.GRAPH, AttrKind.GRAPHS})


def _content(attribute: Attribute) -> tuple[object, ...]:
    """Return a key for the attribute: large values by identity, numbers as text, because ``1 == True`` and ``0.0 == -0.0``."""
    if attribute.kind in _BY_IDENTITY:
        return (attribute.name, id(attribute.value))
    return (attribute.name, attribute.kind, repr(attribute.value))
