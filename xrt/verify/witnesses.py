"""Other engines as witnesses: whether an engine that differs from the reference is wrong, or the reference is.

The reference is right by definition, until others show that it is not. The first node on which the two differ is given to further
engines, alone. If enough of them agree with the engine and not with the reference, the reference alone differs. Then the engine
is neither reported nor replaced, and later nodes are compared with its result at that node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.graph import DType, Function, Node, TensorType, Type, Value
from xrt.verify.comparison import CheckVerdict, OutputJudge, Verdict, judge_outputs
from xrt.verify.execution import Run, compile_alone, copy_values, expose_all_values, find_region, run_regions
from xrt.verify.rounding_error import RoundingTrials

if TYPE_CHECKING:
    from xrt.engines import CompileContext, Executable, GraphCompiler

__all__ = ["Dissent", "Review", "WitnessedReference", "Witnesses", "holds_special"]

MOST_NODES = 3
"""Nodes of one region at which the reference may be found to differ alone; with more, the engine is taken to be wrong."""
MOST_ASKED = 2
"""Times that engines are asked about one function on which several differ from the reference, each in its way."""
MOST_TRIALS = 2
"""Functions of which disturbed results are kept."""
MOST_WITNESSES = 4
"""Engines that are asked about one node."""


@dataclass(frozen=True, slots=True)
class Dissent:
    """A node at which the reference alone differs."""

    node: str
    op: str
    engine: str
    """The spec of the engine that differs from the reference."""
    agreeing: tuple[str, ...]
    """The engines that agree with that one, and not with the reference."""

    def __str__(self) -> str:
        *others, last = self.agreeing
        names = f"{', '.join(others)} and {last}" if others else last
        return (
            f"the reference alone differs at node {self.node!r} ({self.op}); {names} agree{'s' * (not others)} with {self.engine}"
        )


@dataclass(frozen=True, slots=True)
class Review:
    """What came of asking others."""

    judgement: CheckVerdict
    reference: Run
    """The reference, but for the nodes at which it alone differs."""
    dissents: tuple[Dissent, ...] = ()


def holds_special(values: Iterable[Any]) -> bool:
    """Whether one of the tensors holds NaN or an infinity: engines lose those together, and the reference does not."""
    return any(isinstance(x, np.ndarray) and DType.of(x).is_float and not np.isfinite(x.astype(np.float64)).all() for x in values)


@dataclass(eq=False)
class Witnesses:
    """The engines that may be asked, and what they have said."""

    engines: Callable[[], Iterable[GraphCompiler]]
    """Gives those that are installed, one after the other; none is made before it is needed."""
    borrows: Callable[[Node, Function], bool]
    """Whether the reference computes the node with code of another project: then one witness is enough, else it takes two."""
    context: CompileContext
    reference: str = "toy"
    """The name of the reference engine, which is no witness."""
    _said: dict[tuple[str, str], Dissent | None] = field(default_factory=dict)
    """By engine and fingerprint of a node alone."""
    _overruled: dict[tuple[str, str], tuple[Dissent, ...]] = field(default_factory=dict)
    """By engine and fingerprint of a region."""

    @property
    def dissents(self) -> tuple[Dissent, ...]:
        """All nodes at which the reference was found to differ alone."""
        return tuple(dict.fromkeys(dissent for dissent in self._said.values() if dissent is not None))

    def review(
        self,
        function: Function,
        inputs: Sequence[Any],
        results: Sequence[Any],
        engine: GraphCompiler,
        reference: Run,
        judged: CheckVerdict,
    ) -> Review:
        """Return what to think of results that were judged to differ from those of the reference.

        UPHELD says that the reference alone differs, and that nothing else does. Where no witness can be asked, or witnesses
        do not agree with the engine, what was judged stays.
        """
        if judged.verdict is not Verdict.DISAGREES:
            return Review(judged, reference)
        plain, key = function.replace(aliases=()), (engine.spec, function.fingerprint)
        dissents = self._overruled.get(key, ())
        with _Replaced(engine, self.context, reference) as replaced:
            while True:
                replaced.nodes = frozenset(dissent.node for dissent in dissents)
                again = judge_outputs(plain, inputs, results, replaced(plain, inputs), replaced) if dissents else judged
                if again.verdict is not Verdict.DISAGREES:
                    self._overruled[key] = dissents
                    said = CheckVerdict(Verdict.UPHELD, "; ".join(map(str, dissents)))
                    return Review(said, replaced.lasting(), dissents)
                found = self._next(plain, inputs, engine, replaced) if len(dissents) < MOST_NODES else None
                if found is None or found in dissents:
                    return Review(judged, reference)
                dissents = (*dissents, found)

    def find_agreeing(self, judge: OutputJudge, results: Sequence[Any], expected: Sequence[Any]) -> tuple[str, ...]:
        """Return the engines that compute those results, and not what is expected; none unless they are enough.

        Who has computed the results is not known, and is most likely among those that are asked: so it takes one more.
        """
        borrows = any(self.borrows(node, judge.function) for node in judge.function.nodes)
        if holds_special(judge.inputs) and not borrows:
            return ()
        suspect = _Suspect(judge, tuple(results), tuple(expected))
        return self._asked(suspect, (self.reference,), 2 if borrows else 3)

    def _next(self, function: Function, inputs: Sequence[Any], engine: GraphCompiler, reference: Run) -> Dissent | None:
        """Return the first node on which the two differ, if the reference is alone there."""
        try:
            suspect = _suspect(function, inputs, engine, self.context, reference)
        except Exception:  # noqa: BLE001  # whatever an engine raises: it does not compute the node alone, or not with all values out
            return None
        if suspect is None:
            return None
        key = engine.spec, suspect.judge.function.fingerprint
        if key not in self._said:
            self._said[key] = self._poll(suspect, engine)
        return self._said[key]

    def _poll(self, suspect: _Suspect, engine: GraphCompiler) -> Dissent | None:
        """Ask one engine after the other about a node, until enough agree with the engine."""
        part = suspect.judge.function
        (node,) = part.nodes
        is_borrowed = self.borrows(node, part)
        if holds_special(suspect.judge.inputs) and not is_borrowed:
            return None
        agreeing = self._asked(suspect, (self.reference, engine.name), 1 if is_borrowed else 2)
        return Dissent(node.name, node.op, engine.spec, agreeing) if agreeing else None

    def _asked(self, suspect: _Suspect, without: Sequence[str], needed: int) -> tuple[str, ...]:
        """Return the engines that agree with the results of a suspect; none unless so many do, and more than do not."""
        judge, against = suspect.judge, 0
        agreeing: list[str] = []
        for witness in self.engines():
            if witness.name in without or len(agreeing) + against == MOST_WITNESSES:
                continue
            judge.stop_if_asked()
            try:
                said = _alone(witness, judge.function, judge.inputs, self.context)
            except Exception:  # noqa: BLE001  # whatever an engine raises: it is no witness then
                continue
            if judge.agrees(said, suspect.expected):
                against += 1
            elif judge.agrees(said, suspect.results):
                agreeing.append(witness.spec)
            if len(agreeing) >= needed and len(agreeing) > against:
                return tuple(agreeing)
        return ()


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A node alone, or a function, on which an engine and the reference differ."""

    judge: OutputJudge
    results: tuple[Any, ...]
    expected: tuple[Any, ...]


def _suspect(
    function: Function, inputs: Sequence[Any], engine: GraphCompiler, context: CompileContext, reference: Run
) -> _Suspect | None:
    """Return the first node that differs, in the order in which they are computed, and that does so alone too."""
    open_ = expose_all_values(function)
    expected = list(reference(open_, [copy_values(value) for value in inputs]))
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, given) for value, given in zip(function.inputs, inputs, strict=True))
    values.update(zip((value.name for value in open_.outputs), expected, strict=True))
    results = _alone(engine, open_, inputs, context)
    for value, mine, theirs in zip(open_.outputs, results, expected, strict=True):
        if judge_outputs(open_.replace(outputs=(value,)), inputs, [mine], [theirs], reference).verdict is Verdict.DISAGREES:
            return _by_itself(function, function.producer(value.name), values, engine, context, reference)
    return None


def _by_itself(
    function: Function, node: Node | None, values: dict[str, Any], engine: GraphCompiler, context: CompileContext, reference: Run
) -> _Suspect | None:
    """Return the node as a suspect; None where the engine agrees with the reference on the node alone."""
    if node is None:
        return None
    part = find_region(function, [node])
    part = part.replace(inputs=tuple(Value(v.name, _type_of(values[v.name], v.type)) for v in part.inputs))
    given = tuple(values[value.name] for value in part.inputs)
    expected = tuple(values[value.name] for value in part.outputs)
    results = tuple(_alone(engine, part, given, context))
    judge = OutputJudge(part, given, reference)
    differs = judge.judge(results, expected).verdict is Verdict.DISAGREES
    return _Suspect(judge, results, expected) if differs else None


def _type_of(value: Any, declared: Type | None) -> Type | None:
    return TensorType(DType.of(value), value.shape) if isinstance(value, np.ndarray) else declared


def _alone(engine: GraphCompiler, function: Function, inputs: Sequence[Any], context: CompileContext) -> list[Any]:
    executable = compile_alone(engine, function, inputs, context)
    try:
        return [copy_values(value) for value in executable.run([copy_values(value) for value in inputs])]
    finally:
        executable.close()


class _Replaced:
    """The reference with some nodes computed by an engine; a node is compiled once for each form of it."""

    def __init__(self, engine: GraphCompiler, context: CompileContext, reference: Run) -> None:
        self._engine, self._context, self._reference = engine, context, reference
        self._executables: dict[str, Executable] = {}
        self.nodes: frozenset[str] = frozenset()

    def __enter__(self) -> _Replaced:
        return self

    def __exit__(self, *_: object) -> None:
        for executable in self._executables.values():
            executable.close()
        self._executables.clear()

    def lasting(self) -> Run:
        """Return the same as a function that keeps no executables."""

        def run(function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
            with _Replaced(self._engine, self._context, self._reference) as again:
                again.nodes = self.nodes
                return again(function, inputs)

        return run

    def __call__(self, function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
        if self.nodes.isdisjoint(node.name for node in function.nodes):
            return self._reference(function, inputs)
        labels, label = [], 0
        for node in function.nodes:
            label += node.name in self.nodes
            labels.append(label)
            label += node.name in self.nodes
        return run_regions(function.replace(aliases=()), labels, inputs, self._piece)

    def _piece(self, piece: Function, inputs: Sequence[Any]) -> Sequence[Any]:
        if self.nodes.isdisjoint(node.name for node in piece.nodes):
            return self._reference(piece, inputs)
        typed = piece.replace(inputs=tuple(Value(v.name, _type_of(x, v.type)) for v, x in zip(piece.inputs, inputs, strict=True)))
        key = typed.fingerprint
        if key not in self._executables:
            self._executables[key] = compile_alone(self._engine, typed, inputs, self._context)
        return [copy_values(value) for value in self._executables[key].run([copy_values(value) for value in inputs])]


@dataclass(eq=False)
class WitnessedReference:
    """The reference as a function that runs functions, with the witnesses' results where an engine differs from it."""

    run: Run
    witnesses: Witnesses
    _right: dict[str, tuple[str, Sequence[Any]]] = field(default_factory=dict)
    """By fingerprint of a function: who agrees with each other and not with the reference, and what they compute."""
    _asked: Counter[str] = field(default_factory=Counter)
    """By fingerprint of a function: how often others were asked about it."""

    _trials: dict[tuple[object, ...], RoundingTrials] = field(default_factory=dict)
    """Of the functions and inputs that were judged last."""

    def __call__(self, function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
        return self.run(function, inputs)

    def make_judge(self, function: Function, inputs: Sequence[Any], is_stopped: Callable[[], bool]) -> OutputJudge:
        """Return a judge of results of a function, with what others have computed for the same function and arrays."""
        key = function.fingerprint, *map(id, inputs)
        trials = self._trials.pop(key, None) or RoundingTrials(function, inputs)  # they hold the arrays: no id is of others
        self._trials[key] = trials
        if len(self._trials) > MOST_TRIALS:
            self._trials.pop(next(iter(self._trials)), None)
        return OutputJudge(function, inputs, self.run, is_stopped, trials)

    def doubt(self, judge: OutputJudge, results: Sequence[Any], expected: Sequence[Any]) -> str:
        """Return why results that differ are right after all, as a sentence; empty where they are not.

        Raises Stopped where the judge is stopped.
        """
        key = judge.function.fingerprint
        if key in self._right:
            reason, right = self._right[key]
            return reason if judge.agrees(results, right) else ""
        if self._asked[key] == MOST_ASKED:
            return ""
        self._asked[key] += 1
        names = self.witnesses.find_agreeing(judge, results, expected)
        if not names:
            return ""
        said = f"the reference alone differs: {', '.join(names[:-1])} and {names[-1]} agree"
        self._right[key] = said, results
        return said

    def why_doubted(self, function: Function) -> str:
        """Return why the reference is not right on a function; empty if no witnesses have shown that."""
        return self._right.get(function.fingerprint, ("", ()))[0]
