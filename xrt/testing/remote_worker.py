"""The other side of `remote`: a process that runs cases of a conformance run, or fuzzes, one at a time, as it is asked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from xrt.engines import GraphCompiler, parse_spec
from xrt.engines.contract.spec import build
from xrt.engines.toolkit.shared_values import put_function, put_values
from xrt.processes.ipc import Message, SharedBuffer
from xrt.processes.server import Request, serve
from xrt.testing.conformance import create_engines, makers_for, run_case, run_reference
from xrt.testing.fuzz import Finding, Fuzzer
from xrt.testing.onnx_models import group_cases

__all__ = ["main"]

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

    def settle(asked: Message, buffer: SharedBuffer) -> Message:
        return {"settled": [[*key, verdict] for key, verdict in fuzzer.settle(asked["seeds"]).items()]}

    def way(asked: Message, buffer: SharedBuffer) -> Message:
        word, chosen = tries["ways"][asked["number"]]
        fuzzer.counts.clear()
        found = fuzzer.try_way(tries["seed"], word, chosen, tries["sample"], tries["expected"])
        ((_, verdict),) = fuzzer.counts
        return {"verdict": verdict} if found is None else {"verdict": verdict, "finding": _put_finding(found, buffer)}

    return {"settle": settle, "seed": seed, "way": way}, {}


def _put_finding(found: Finding, buffer: SharedBuffer) -> Message:
    sample = {"function": put_function(buffer, found.sample.function), "inputs": put_values(buffer, found.sample.inputs)}
    return {"way": found.way, "message": found.message, **sample}


_KINDS: Mapping[str, Callable[[Message], tuple[Answers, Message]]] = {"conform": _conform, "fuzz": _fuzz}
