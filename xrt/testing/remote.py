"""Cases and graphs in a worker process: what ends it is the outcome of the one that was asked for, and the rest goes on.

An engine's native code may crash on what it is tried on. The process that asks loads no engine's library for that; `main` is the
other side. After a crash the next question starts another worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from xrt.engines import GraphCompiler, parse_spec
from xrt.engines.contract.spec import build
from xrt.engines.toolkit.shared_values import put_function, put_values, read_function, read_values
from xrt.errors import OptionError
from xrt.processes.client import RemoteError, WorkerLost, WorkerProcess
from xrt.processes.ipc import Message, SharedBuffer
from xrt.processes.server import Request, serve
from xrt.testing.cases import group_cases
from xrt.testing.conformance import create_engines, makers_for, run_case, run_reference
from xrt.testing.fuzz import Finding, Fuzzer, Sample, make_sample
from xrt.testing.report import Outcome, ResultWord
from xrt.verify import Verdict
from xrt.worker.isolated_engine import identify, why_not_isolated

__all__ = ["Remote", "RemoteFuzzer", "conform_remotely", "identities", "main"]


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
        self._worker = WorkerProcess("xrt.testing.remote:main", keeps_output=False)
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

    def try_seed(self, seed: int) -> list[Finding]:
        try:
            answer, memory = self._remote.ask({"do": "seed", "seed": seed})
        except WorkerLost as lost:
            return [self._crashed(seed, "reference", "the reference", lost)]
        if (found := _finding(seed, answer, memory)) is not None:
            self.counts["reference", Verdict.DISAGREES] += 1
            return [found]
        for number, (word, way) in enumerate(answer["ways"]):
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


Answers = Mapping[str, Callable[[Message, SharedBuffer], Message]]


def main(handle: str) -> None:
    """Serve the socket of that number; what is to be done is known by the first question."""
    answers: Answers = {}

    def answer(request: Request) -> Message:
        nonlocal answers
        kind = request.message["do"]
        if kind in _KINDS:
            answers, opened = _KINDS[kind](request.message)
            return opened
        return answers[kind](request.message, request.buffer)

    serve(handle, answer)


def _engines(asked: Sequence[str | Mapping[str, str]]) -> list[str | GraphCompiler]:
    return [one if isinstance(one, str) else _engine(one) for one in asked]


def _engine(asked: Mapping[str, str]) -> GraphCompiler:
    module, _, name = asked["class"].partition(":")
    engine: GraphCompiler = build(getattr(importlib.import_module(module), name), parse_spec(asked["spec"])[1])
    return engine


def _conform(message: Message) -> tuple[Answers, Message]:
    """Return the answers of a conformance run, and its cases."""
    listed, is_auto = create_engines(_engines(message["engines"]))
    makers = makers_for(listed, alternate=message["alternate"], auto=is_auto, opening=message["opening"])
    cases = group_cases(message["groups"], message["pattern"], shard=tuple(message["shard"]))

    def run(asked: Message, buffer: SharedBuffer) -> Message:
        return asdict(run_case(replace(cases[asked["number"]]), *makers))

    def refer(asked: Message, buffer: SharedBuffer) -> Message:
        return asdict(run_reference(cases[asked["number"]]))

    described = [{"case": case.name, "group": case.group, "operators": case.operators} for case in cases]
    return {"case": run, "reference": refer}, {"cases": described}


def _fuzz(message: Message) -> tuple[Answers, Message]:
    """Return the answers of a fuzzer."""
    engines, rarely = _engines(message["engines"]), _engines(message["rarely"])
    fuzzer = Fuzzer(engines, rarely, message["one_in"], message["shrinks"], message["kinds"])
    tries: dict[str, Any] = {}

    def seed(asked: Message, buffer: SharedBuffer) -> Message:
        begun = fuzzer.begin(asked["seed"])
        if isinstance(begun, Finding):
            return {"finding": _put_finding(begun, buffer)}
        sample, expected = begun
        tries.update(seed=asked["seed"], sample=sample, expected=expected, ways=fuzzer.ways(asked["seed"]))
        return {"ways": [[word, str(way)] for word, way in tries["ways"]]}

    def way(asked: Message, buffer: SharedBuffer) -> Message:
        word, chosen = tries["ways"][asked["number"]]
        fuzzer.counts.clear()
        found = fuzzer.try_way(tries["seed"], word, chosen, tries["sample"], tries["expected"])
        ((_, verdict),) = fuzzer.counts
        return {"verdict": verdict} if found is None else {"verdict": verdict, "finding": _put_finding(found, buffer)}

    return {"seed": seed, "way": way}, {}


def _put_finding(found: Finding, buffer: SharedBuffer) -> Message:
    sample = {"function": put_function(buffer, found.sample.function), "inputs": put_values(buffer, found.sample.inputs)}
    return {"way": found.way, "message": found.message, **sample}


_KINDS: Mapping[str, Callable[[Message], tuple[Answers, Message]]] = {"conform": _conform, "fuzz": _fuzz}
