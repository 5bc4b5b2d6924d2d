"""What `make cuda-check` found, as a section of the page of performance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tools.conformance_page import table
from tools.performance_record import TOP

__all__ = ["RESULTS", "cuda_section", "read_results"]

RESULTS = TOP / "docs" / "cuda-results.json"
TARGET = 1.05
"""A call over the engine's own with bound device buffers."""

_HEAD = """\
## CUDA

*What does XRT cost, and reach, on a GPU?* Written by `make cuda-check`, on a machine that has one, from
`benchmarks/cuda.py` and the tests that need one. All arrays lie on the device; *own* is the engine's own call over bound buffers.
"""

_NOTHING = """\
Not measured: no machine with a GPU has run `make cuda-check` yet. What can be proved without one is proved on simulated
devices (`tests/devices`); what CUDA itself makes of it is not.
"""


def read_results() -> dict[str, Any] | None:
    """Return what the last check found; None where none has been written."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else None


def cuda_section(results: Mapping[str, Any] | None) -> str:
    """Return the section's text."""
    if results is None:
        return f"{_HEAD}\n{_NOTHING}"
    return "\n".join(
        [_HEAD, f"Measured on {results['date']} on {results['device']}; {results['versions']}.\n", *_tables(results)]
    )


def _tables(results: Mapping[str, Any]) -> Iterator[str]:
    yield table(["engine", "on the device"], [[f"`{name}`", said] for name, said in results["engines"].items()])
    yield ""
    yield table(["tests", "passed", "declined", "failed", "not reached"], [_tests(*one) for one in results["tests"].items()])
    yield ""
    yield table(
        ["model", "engine", "call, ms", "graph, ms", "own, ms", "call to own", "reached"], map(_latency, results["latency"])
    )
    yield ""
    if results["chain"]:
        yield _chain(results["chain"])
    yield _copied("A call with arrays of the host", results["copies"]["host"])
    yield _copied("A call with arrays of the device", results["copies"]["device"])
    for mixed in results["mixtures"]:
        yield _copied(f"Two calls of {' and '.join(mixed['engines'])} ({len(mixed['regions'])} regions)", mixed["traffic"])
    if not results["mixtures"]:
        yield "No mixture was at hand.\n"


def _tests(name: str, counts: Mapping[str, int]) -> list[str]:
    return [name, *(str(counts.get(word, 0)) for word in ("passed", "declined", "failed", "unreached"))]


def _latency(entry: Mapping[str, Any]) -> list[str]:
    shown = [f"{1e3 * entry['seconds'][name]:.3f}" if name in entry["seconds"] else "" for name in ("call", "graph", "own")]
    own = entry["to_own"].get("call")
    figure = f"{own['median']:.3f} ({own['low']:.3f} to {own['high']:.3f})" if own else ""
    reached = entry.get("said", "") if own is None else "yes" if own["median"] <= TARGET else "no"
    return [entry["model"], f"`{entry['engine']}`", *shown, figure, reached]


def _chain(found: Mapping[str, Any]) -> str:
    share = found["of_the_copy"]["chain"]["median"]
    rate = found["bytes_per_second"]["copy"] / 1e9
    size = f"{found['extent']}x{found['extent']}"
    return f"Fifty elementwise operators on {size} as one kernel reach {share:.0%} of the {rate:,.0f} GB/s that a copy reaches.\n"


def _copied(what: str, traffic: Mapping[str, int] | None) -> str:
    if traffic is None:
        return f"{what}: nothing was counted.\n"
    return (
        f"{what}: {traffic['copies_in']} arrays to the device, {traffic['copies_out']} to the host, {traffic['waits']} waits in "
        f"{traffic['calls']} call(s).\n"
    )
