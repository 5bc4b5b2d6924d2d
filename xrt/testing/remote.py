"""Cases and graphs in a worker process: what ends it is the outcome of the one that was asked for, and the rest goes on.

An engine's native code may crash on what it is tried on. The process that asks, here, loads no engine's library for that; the
other side is `remote_worker`. After a crash the next question starts another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from xrt.engines import GraphCompiler
from xrt.engines.toolkit.shared_values import read_function, read_values
from xrt.errors import OptionError
from xrt.processes.client import RemoteError, WorkerLost, WorkerProcess
from xrt.processes.ipc import Message
from xrt.testing.fuzz import Finding, Fuzzer, Sample, make_sample
from xrt.testing.report import Outcome, ResultWord
from xrt.verify import Verdict
from xrt.worker.isolated_engine import identify, why_not_isolated

__all__ = ["Remote", "RemoteFuzzer", "conform_remotely", "identities"]


def identities(engines: Sequence[str | GraphCompiler]) -> list[str | dict[str, str]]:
    """Return what tells another process which engines are meant; raises OptionError for one that no other can import."""
    for engine in engines:
        if isinstance(engine, GraphCompiler) and (reason := why_not_isolated(engine)):
            raise OptionError(f"engine {engine.spec!r} cannot be tried in a process of its own: {reason}")
    return [engine if isinstance(engine, str) else identify(engine) for engine in engines]


class Remote:
    """A worker that is started when it is asked, and again after it died. Use with `contextlib.closing`."""

    def __init__(self, opening: Message) -> None:
        """Each worker is asked ``opening`` first."""
        self._opening = opening
        self._worker: WorkerProcess | None = None

    def begin(self) -> Message:
        """Start a worker, and return its answer to the opening."""
        self._worker = WorkerProcess("xrt.testing.remote_worker:main", keeps_output=False)
        return self.ask(self._opening)[0]

    def ask(self, message: Mapping[str, Any]) -> tuple[Message, memoryview]:
        """Return the answer and its memory; raises WorkerLost where the worker died of it, or the error that was raised there."""
        if self._worker is None or not self._worker.is_alive:
            self.begin()
        assert self._worker is not None
        try:
            return self._worker.ask(message)
        except RemoteError as error:
            raise error.restore() from None

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()


def conform_remotely(
    engines: Sequence[str | GraphCompiler],
    opening: Mapping[str, Any],
    reference: bool,
    tell: Callable[[int, int, Outcome], None],
) -> tuple[list[Outcome], list[Outcome]]:
    """Return the outcomes of a conformance run, and those of the reference if it was requested."""
    outcomes: list[Outcome] = []
    of_reference: list[Outcome] = []
    with closing(Remote({"do": "conform", "engines": identities(engines), **opening})) as remote:
        cases = remote.begin()["cases"]
        for number, case in enumerate(cases):
            try:
                outcomes.append(Outcome.from_dict(remote.ask({"do": "case", "number": number})[0]))
            except WorkerLost as lost:
                outcomes.append(
                    Outcome(case["case"], ResultWord.FAILED, str(lost), tuple(case["operators"]), group=case["group"])
                )
            tell(number + 1, len(cases), outcomes[-1])
        if reference:
            of_reference = [Outcome.from_dict(remote.ask({"do": "reference", "number": n})[0]) for n in range(len(cases))]
    return outcomes, of_reference


@dataclass
class RemoteFuzzer(Fuzzer):
    """A Fuzzer whose graphs run in a worker; a crash is a disagreement of the way that was tried, and is not made smaller."""

    _remote: Remote = field(init=False)

    def __post_init__(self) -> None:
        opening = {"do": "fuzz", "engines": identities(self.engines), "rarely": identities(self.rarely)}
        self._remote = Remote({**opening, "one_in": self.one_in, "shrinks": self.shrinks, "kinds": list(self.kinds)})

    def run(self, *given: Any, **more: Any) -> None:
        with closing(self._remote):
            super().run(*given, **more)

    def settle(self, seeds: Sequence[int]) -> dict[tuple[int, str], Verdict]:
        try:
            answer = self._remote.ask({"do": "settle", "seeds": list(seeds)})[0]
        except WorkerLost:  # the graph that ended it does so again by itself
            return {}
        return {(seed, word): Verdict(verdict) for seed, word, verdict in answer["settled"]}

    def try_seed(self, seed: int) -> list[Finding]:
        try:
            answer, memory = self._remote.ask({"do": "seed", "seed": seed})
        except WorkerLost as lost:
            return [self._crashed(seed, "reference", "the reference", lost)]
        if (found := _finding(seed, answer, memory)) is not None:
            self.counts["reference", Verdict.DISAGREES] += 1
            return [found]
        for number, (word, way) in enumerate(answer["ways"]):
            if (proved := self.settled.get((seed, word))) is not None:
                self.counts[word, proved] += 1
                continue
            try:
                answer, memory = self._remote.ask({"do": "way", "number": number})
            except WorkerLost as lost:
                return [self._crashed(seed, word, way, lost)]
            self.counts[word, Verdict(answer["verdict"])] += 1
            if (found := _finding(seed, answer, memory)) is not None:
                return [found]
        return []

    def _crashed(self, seed: int, word: str, way: str, lost: WorkerLost) -> Finding:
        self.counts[word, Verdict.DISAGREES] += 1
        return Finding(seed, way, str(lost), make_sample(seed))


def _finding(seed: int, answer: Message, memory: memoryview) -> Finding | None:
    """Return the finding that an answer holds."""
    if "finding" not in answer:
        return None
    found = answer["finding"]
    sample = Sample(read_function(memory, found["function"]), tuple(read_values(memory, found["inputs"])))
    return Finding(seed, found["way"], found["message"], sample)
