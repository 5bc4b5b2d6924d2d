"""What the Trace Event Format asks of a file: checks that a viewer can place each event."""

from __future__ import annotations

import json
from numbers import Real
from pathlib import Path
from typing import Any

METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
"""Metadata events of the format, and the argument that each must have."""


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a file, whose form is checked: keys and types, order, nesting on each track, and names."""
    data = json.loads(path.read_text(encoding="utf-8"))
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    events = data["traceEvents"]
    for event in events:
        assert isinstance(event["name"], str) and event["ph"] in ("X", "M")
        assert type(event["pid"]) is int and type(event["tid"]) is int and isinstance(event["args"], dict)
    metadata = [event for event in events if event["ph"] == "M"]
    complete = [event for event in events if event["ph"] == "X"]
    assert events == [*metadata, *complete], "names come first, so that tracks have them from the beginning"
    for event in metadata:
        assert METADATA[event["name"]] in event["args"]
    for event in complete:
        assert isinstance(event["cat"], str)
        assert all(isinstance(event[key], Real) and not isinstance(event[key], bool) and event[key] >= 0 for key in ("ts", "dur"))
    assert [event["ts"] for event in complete] == sorted(event["ts"] for event in complete)
    named = {(event["pid"], event["tid"]) for event in metadata if event["name"] == "thread_name"}
    processes = {event["pid"] for event in metadata if event["name"] == "process_name"}
    assert {(event["pid"], event["tid"]) for event in complete} == named
    assert {pid for pid, _ in named} == processes
    assert len({tid for _, tid in named}) == len(named), "a thread belongs to one process"
    for track in named:
        check_nesting([event for event in complete if (event["pid"], event["tid"]) == track])
    return complete


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Assert that of two events of a track one holds the other, or ends before it begins."""
    around: list[float] = []
    for event in events:
        end = round(event["ts"] + event["dur"], 3)
        while around and around[-1] <= event["ts"]:
            around.pop()
        assert not around or end <= around[-1], f"{event['name']} ends outside of what holds it"
        around.append(end)
