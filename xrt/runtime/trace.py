"""A timeline as a file in the Trace Event Format, which Perfetto and chrome://tracing open.

The format is Google's "Trace Event Format" (2016): a JSON object of events. A moment is a complete event (``ph`` is ``X``) with
its beginning ``ts`` and its length ``dur`` in microseconds. Metadata events (``ph`` is ``M``) name the tracks: a device is a
process there (``pid``), and each thread of this process that worked on it a thread of that (``tid``, a number of its own).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xrt.errors import InputError
from xrt.formats.output import replace_file
from xrt.graph import FrozenDict
from xrt.runtime.profile import HOST, Moment

__all__ = ["make_trace", "write_trace"]


def make_trace(moments: Sequence[Moment], facts: Mapping[str, Any] = FrozenDict()) -> dict[str, Any]:
    """Return the trace as plain data for JSON; the earliest begins at 0. ``facts`` are about the whole."""
    ordered = sorted(moments, key=lambda moment: (moment.began, -moment.ended))
    tracks = _number_tracks(ordered)
    origin = ordered[0].began if ordered else 0.0
    events = [*_name_tracks(tracks), *(_make_event(moment, tracks, origin) for moment in ordered)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(facts)}


def write_trace(moments: Sequence[Moment], path: str | os.PathLike[str], facts: Mapping[str, Any] = FrozenDict()) -> None:
    """Write the trace, whole or not at all; raises InputError where the file cannot be written."""
    data = json.dumps(make_trace(moments, facts)).encode()
    try:
        replace_file(Path(path), lambda file: file.write(data))
    except OSError as error:
        raise InputError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Track:
    pid: int
    tid: int
    device: str
    thread_name: str


def _number_tracks(moments: Sequence[Moment]) -> dict[tuple[str, int], _Track]:
    """Return a track for each device and thread; the host is the first process, other devices follow by name."""
    devices = sorted({moment.device for moment in moments}, key=lambda name: (name != HOST, name))
    processes = {name: number for number, name in enumerate(devices, 1)}
    names = {(moment.device, moment.thread[0]): moment.thread[1] for moment in moments}
    in_order = sorted(names, key=lambda track: processes[track[0]])  # within a process by their first event
    return {
        (device, thread): _Track(processes[device], number, device, names[device, thread])
        for number, (device, thread) in enumerate(in_order, 1)
    }


def _name_tracks(tracks: Mapping[tuple[str, int], _Track]) -> Iterator[dict[str, Any]]:
    for pid, device in sorted({(track.pid, track.device) for track in tracks.values()}):
        yield _metadata("process_name", pid, 0, {"name": device})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    for track in sorted(tracks.values(), key=lambda track: (track.pid, track.tid)):
        yield _metadata("thread_name", track.pid, track.tid, {"name": track.thread_name})


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": arguments}


def _make_event(moment: Moment, tracks: Mapping[tuple[str, int], _Track], origin: float) -> dict[str, Any]:
    """Return a complete event. Both ends are rounded to nanoseconds, so that an event stays within the one around it."""
    track = tracks[moment.device, moment.thread[0]]
    began, ended = (round(1e6 * (at - origin), 3) for at in (moment.began, moment.ended))
    return {
        "ph": "X",
        "name": moment.name,
        "cat": moment.category,
        "ts": began,
        "dur": round(ended - began, 3),
        "pid": track.pid,
        "tid": track.tid,
        "args": dict(moment.facts),
    }
