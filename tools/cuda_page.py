"""The section on CUDA of ``docs/performance.md``, from the results of `make cuda-check`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tools.conformance_page import table
from tools.performance_record import TOP

__all__ = ["RESULTS", "cuda_section", "read_results"]

RESULTS = TOP / "docs" / "cuda-results.json"
TARGET_RATIO = 1.05
"""Maximum time of a call, relative to the engine's own call with bound device buffers."""

_HEAD = """\
## CUDA

*What does XRT cost on a GPU?* Written by `make cuda-check` from `benchmarks/gpu.py` and the tests that need a GPU. All arrays
are on the device; *own* is the engine's own call with bound buffers.
"""

_NOTHING = """\
Not measured: no machine with a GPU has run `make cuda-check` yet. Placement, copies and streams are tested on simulated devices
(`tests/devices`); nothing has run on CUDA itself.
"""


def read_results() -> dict[str, Any] | None:
    """Read the results of the last check, if any."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else None


def cuda_section(results: Mapping[str, Any] | None) -> str:
    if results is None:
        return f"{_HEAD}\n{_NOTHING}"
    return "\n".join(
        [_HEAD, f"Measured on {results['date']} on {results['device']}; {results['versions']}.\n", *_list_tables(results)]
    )


def _list_tables(results: Mapping[str, Any]) -> Iterator[str]:
    yield table(["engine", "on the device"], [[f"`{name}`", state] for name, state in results["engines"].items()])
    yield ""
    rows = [_make_test_row(name, counts) for name, counts in results["tests"].items()]
    yield table(["tests", "passed", "declined", "known failures", "failed", "not reached"], rows)
    yield ""
    columns = ["model", "engine", "call, ms", "graph, ms", "own, ms", "call to own", "reached"]
    yield table(columns, map(_make_latency_row, results["latency"]))
    yield ""
    if results["chain"]:
        yield _describe_chain(results["chain"])
    yield _describe_copies("A call with arrays of the host", results["copies"]["host"])
    yield _describe_copies("A call with arrays of the device", results["copies"]["device"])
    for mixed in results["mixtures"]:
        calls = f"Two calls of {' and '.join(mixed['engines'])} ({len(mixed['regions'])} regions)"
        yield _describe_copies(calls, mixed["traffic"])
    if not results["mixtures"]:
        yield "No mixture was measured: fewer than two engines are ready.\n"


def _make_test_row(name: str, counts: Mapping[str, int]) -> list[str]:
    return [name, *(str(counts.get(word, 0)) for word in ("passed", "declined", "known", "failed", "unreached"))]


def _make_latency_row(entry: Mapping[str, Any]) -> list[str]:
    seconds = entry["seconds"]
    milliseconds = [f"{1e3 * seconds[name]:.3f}" if name in seconds else "" for name in ("call", "graph", "own")]
    own = entry["to_own"].get("call")
    figure = f"{own['median']:.3f} ({own['low']:.3f} to {own['high']:.3f})" if own else ""
    if own is None:
        reached = entry.get("said", "")
    else:
        reached = "yes" if own["median"] <= TARGET_RATIO else "no"
    return [entry["model"], f"`{entry['engine']}`", *milliseconds, figure, reached]


def _describe_chain(chain: Mapping[str, Any]) -> str:
    shares = ", ".join(f"{share['median']:.0%} on `{name}`" for name, share in chain["of_the_copy"].items())
    rate = chain["bytes_per_second"]["copy"] / 1e9
    size = f"{chain['extent']}x{chain['extent']}"
    return f"Fifty elementwise operators on {size}, of the {rate:,.0f} GB/s that a copy reaches: {shares}.\n"


def _describe_copies(what: str, traffic: Mapping[str, int] | None) -> str:
    if traffic is None:
        return f"{what}: no copies were counted.\n"
    return (
        f"{what}: {traffic['copies_in']} arrays to the device, {traffic['copies_out']} to the host, {traffic['waits']} waits in "
        f"{traffic['calls']} call(s).\n"
    )
