"""Engines made ready for a search: each is imported, started and asked about the nodes in a thread of its own, as time allows.

An engine that is not ready in time takes no node, and the reason says so. What it was asked is remembered by kinds of node, so
that it is asked only about what is new, in this process and in others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrt.engines.contract.proxy import RecordedSupportEngine
from xrt.errors import EngineError
from xrt.partition.questions import QuestionKeys, with_names, without_names
from xrt.partition.support_matrix import ask_engine, number_questions
from xrt.placement.decision_store import make_questions_key
from xrt.placement.result import NOT_MEASURED
from xrt.placement.time_limit import OutOfTime, begin, within

if TYPE_CHECKING:
    from xrt.cache import Signature
    from xrt.cache.disk.cost_store import CostStore
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.graph import Function, Node
    from xrt.placement.profiling.runners import Runner

__all__ = ["Inquiry"]

_log = logging.getLogger(__name__)

PATIENCE = 0.2
"""Seconds for which the end of a search waits for a worker to end."""
LONGEST = 2000
"""Characters of a reason that is remembered."""


@dataclass(eq=False)
class _Asked:
    """One engine, and how far it is."""

    engine: GraphCompiler
    home: str
    signature: Signature | None = None
    known: Mapping[str, str | None] = field(default_factory=dict)
    """What it has answered in earlier searches, by the keys of questions."""
    way: Runner | None = None
    answers: dict[int, str | None] = field(default_factory=dict)
    """By the numbers of questions."""
    has_answered: threading.Event = field(default_factory=threading.Event)
    """Set when it has answered all, or failed."""
    work: Future[None] | None = None
    failure: str = ""
    """Why it cannot take part."""

    @property
    def is_ready(self) -> bool:
        return self.work is not None and self.work.done()


class Inquiry:
    """The engines of one search. Threads answer; who searches waits for them as long as it likes."""

    def __init__(
        self,
        function: Function,
        engines: Sequence[GraphCompiler],
        contexts: Mapping[str, CompileContext],
        way_of: Callable[[GraphCompiler], Runner],
        store: CostStore | None = None,
    ) -> None:
        self.function = function
        self._way_of = way_of
        self._store = store
        self._is_over = False
        self._may_start = threading.Event()
        self._may_ask = threading.Event()
        self._may_ask.set()
        self._numbers, self._firsts = number_questions(function)
        self._keys = self._keyed(function)
        self._asked = {one.spec: _Asked(one, contexts[one.spec].device) for one in engines}
        for spec, asked in self._asked.items():
            if store is not None and (signature := make_questions_key(asked.engine, contexts[spec])) is not None:
                asked.signature, asked.known = signature, store.answers(signature)

    def _keyed(self, function: Function) -> list[str | None]:
        keys = QuestionKeys(function)
        by_node = [keys.key(node) for node in function.nodes]
        first = {number: place for place, number in reversed(list(enumerate(self._numbers)))}
        return [by_node[first[number]] for number in range(len(self._firsts))]

    # ------------------------------------------------------------------ waiting

    @property
    def pending(self) -> list[str]:
        """The engines that are not ready yet, those of which the most is known first."""
        left = [spec for spec, asked in self._asked.items() if not asked.is_ready]
        return sorted(left, key=lambda spec: sum(key not in self._asked[spec].known for key in self._keys))

    def wait(self, spec: str, seconds: float) -> bool:
        """Begin with the engine, unless that was done before, and wait so long; return whether it is ready to be measured."""
        self._may_start.set()
        with suppress(TimeoutError):
            self._begun(spec).result(max(seconds, 0.0))
        return self._asked[spec].is_ready

    def wait_for_answers(self, spec: str, seconds: float) -> bool:
        """Begin with the engine, and wait so long; return whether it has answered all. Nothing is started before `wait`."""
        self._begun(spec)
        return self._asked[spec].has_answered.wait(max(seconds, 0.0))

    def _begun(self, spec: str) -> Future[None]:
        asked = self._asked[spec]
        if asked.work is None:
            asked.work = begin(lambda: self._make_ready(asked), f"xrt-ask-{asked.engine.name}")
        return asked.work

    @property
    def known(self) -> tuple[str, ...]:
        """The engines that have answered all, or failed: what `engines` says of them stays."""
        return tuple(spec for spec, asked in self._asked.items() if asked.has_answered.is_set())

    @property
    def unanswered(self) -> list[str]:
        """The engines that have not answered all."""
        return [spec for spec in self.pending if not self._asked[spec].has_answered.is_set()]

    def _make_ready(self, asked: _Asked) -> None:
        """Import the engine, ask it, and have its worker import it as well; to be done in a thread."""
        try:
            asked.way = way = self._way_of(asked.engine)
            self._ask(asked)
            asked.has_answered.set()
            self._may_start.wait()
            if not self._is_over:
                way.start()
        except EngineError as error:
            asked.failure = " ".join(str(error).split())
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            asked.failure = f"{type(error).__name__}: {error}"
        asked.has_answered.set()
        if self._is_over and asked.way is not None:
            asked.way.close()

    def _ask(self, asked: _Asked) -> None:
        for number, node in enumerate(self._firsts):
            self._may_ask.wait()
            if self._is_over:
                return
            key = self._keys[number]
            if key is not None and key in asked.known:
                reason = asked.known[key]
                asked.answers[number] = None if reason is None else with_names(reason, node)
            else:
                asked.answers[number] = ask_engine(asked.engine, asked.home, node, self.function)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Ask nothing meanwhile: something is measured, or must be done soon. Questions that are under way go on."""
        self._may_ask.clear()
        try:
            yield
        finally:
            self._may_ask.set()

    # ------------------------------------------------------------------ what is known

    @property
    def ways(self) -> dict[str, Runner]:
        """The ways of the engines that are ready."""
        return {spec: one.way for spec, one in self._asked.items() if one.is_ready and one.way is not None and not one.failure}

    def engines(self, *, started: bool = False) -> list[GraphCompiler]:
        """Return all engines by what they have answered; one that has not takes nothing, nor where it must be ``started``."""
        return [self._by_answers(asked, started=started) for asked in self._asked.values()]

    def _by_answers(self, asked: _Asked, *, started: bool) -> GraphCompiler:
        if (reason := self._why_not(asked, started=started)) is not None:
            return RecordedSupportEngine(
                asked.engine, dict.fromkeys((node.name for node in self.function.nodes), f"{NOT_MEASURED}{reason}")
            )
        pairs = zip(self.function.nodes, self._numbers, strict=True)
        found = {node.name: reason for node, number in pairs if (reason := asked.answers[number]) is not None}
        return RecordedSupportEngine(asked.engine, found)

    def why_not_ready(self, spec: str) -> str | None:
        """Return why the engine could not be measured; None where it could."""
        return self._why_not(self._asked[spec], started=True)

    def _why_not(self, asked: _Asked, *, started: bool) -> str | None:
        if asked.failure:
            return asked.failure
        if len(asked.answers) == len(self._firsts) and (asked.is_ready or (asked.has_answered.is_set() and not started)):
            return None
        if asked.work is None:
            return "it was not asked before the budget ended"
        if asked.way is None:
            return "it was not imported before the budget ended"
        if len(asked.answers) == len(self._firsts):
            return "it had not started before the budget ended"
        return "the budget ended while it was asked which nodes it supports"

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Keep what was answered, and let go of the ways; who is not ready lets go as soon as it is."""
        self._is_over = True
        self._may_start.set()
        self._may_ask.set()
        for asked in self._asked.values():
            self._keep(asked)
            if asked.is_ready and asked.way is not None:
                with suppress(OutOfTime):  # a worker that is being started is ended as soon as it is there
                    within(PATIENCE, asked.way.close)

    def _keep(self, asked: _Asked) -> None:
        """Write down what is new."""
        if self._store is None or asked.signature is None:
            return
        answered: dict[str, Any] = {}
        for number, reason in list(asked.answers.items()):
            key, node = self._keys[number], self._firsts[number]
            if key is not None and key not in asked.known and (reason is None or len(reason) <= LONGEST):
                answered[key] = _kept(reason, node)
        if answered:
            self._store.keep_answers(asked.signature, answered)


def _kept(reason: str | None, node: Node) -> str | None:
    return None if reason is None else without_names(reason, node)
