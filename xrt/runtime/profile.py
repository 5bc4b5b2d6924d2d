"""Profiles: the times of launches as a table, and as a timeline for a trace viewer."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.errors import InputError
from xrt.forking import renew_after_fork
from xrt.formats.output import replace_file
from xrt.graph import FrozenDict
from xrt.runtime.memory_plan import UpdateCopy

if TYPE_CHECKING:
    from xrt.runtime.devices.interface import TransferStats
    from xrt.runtime.memory_plan import Update

MAX_MOMENTS = 100_000
"""Maximum events of a timeline, which take some tens of megabytes. The oldest ones are dropped."""
HOST = "cpu"
RUN_TIME_COPY_REASON = (
    "the array of the call shares memory with another input, is not in C order, or was not written by the engine"
)
"""Why an output was copied to an input although the plan computes it in the input's array."""


@dataclass(frozen=True, slots=True)
class LaunchTime:
    launch: str
    engine: str
    calls: int
    seconds: float
    device: str = HOST


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of a timeline: a launch, a copy between devices, or a whole call."""

    name: str
    category: str
    """The engine of a launch; else ``call`` or ``copy``."""
    device: str
    thread: tuple[int, str]
    began: float
    ended: float
    """Start and end in seconds, by `time.perf_counter`."""
    facts: tuple[tuple[str, str | int], ...] = ()
    """Details to display, such as the devices and bytes of a copy."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of the launches of a program, in plan order."""

    launches: tuple[LaunchTime, ...]
    threads: int | None = None
    traffic: TransferStats | None = None
    """Transfers between devices over all calls, profiled or not; None on the CPU."""
    moments: tuple[Moment, ...] = field(default=(), repr=False)
    """Timeline of the profiled calls: the latest `MAX_MOMENTS` events."""
    copies: tuple[UpdateCopy, ...] = ()
    """Copies of outputs to the inputs that they update, over all calls."""

    @property
    def seconds(self) -> float:
        """Total time in launches, without the time between launches."""
        return sum(launch.seconds for launch in self.launches)

    def to_dict(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "launches": [asdict(launch) for launch in self.launches],
            "copies": [asdict(copy) for copy in self.copies],
            "traffic": None if self.traffic is None else asdict(self.traffic),
        }

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline of the profiled calls in the Trace Event Format, for Perfetto or chrome://tracing.

        There is one track per device and calling thread. The category of a launch is its engine. Times are in microseconds since
        the first call. Raises InputError if the file cannot be written.
        """
        facts = {"tool": "xrt", "threads": self.threads} if self.threads is not None else {"tool": "xrt"}
        data = json.dumps(make_trace(self.moments, facts)).encode()
        try:
            replace_file(Path(path), lambda file: file.write(data))
        except OSError as error:
            raise InputError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error

    def _repr_html_(self) -> str:
        from xrt.html import views
        from xrt.partition.plan import color_engines

        if not any(launch.calls for launch in self.launches):
            return views.render_cell("profile.html", profile=self, strips=None)
        times = tuple(launch.seconds / max(launch.calls, 1) for launch in self.launches)
        # Without the times of whole calls, a call counts as the sum of its launches.
        call_times = [moment.ended - moment.began for moment in self.moments if moment.category == "call"] or [sum(times)]
        call = views.MeanCall(max(launch.calls for launch in self.launches), sum(call_times) / len(call_times), times)
        regions = [views.PlanRegion(x.launch, x.engine, 0, (), (), is_output=False) for x in self.launches]
        colors = color_engines(region.engine for region in regions)
        total = sum(times) or 1.0  # of a clock that did not advance
        launches = [
            (x.launch, x.engine, x.device, x.calls, views.format_seconds(time), views.format_percent(time / total))
            for x, time in zip(self.launches, times, strict=True)
        ]
        threads = "" if self.threads is None else f" on {views.format_count(self.threads, 'thread')}"
        strip = views.Strip(f"One call{threads}, mean of {views.format_count(call.calls, 'call')}", regions, call)
        strips = views.make_strips([strip], colors)
        return views.render_cell("profile.html", profile=self, strips=strips, colors=colors, launches=launches)

    def __str__(self) -> str:
        if not any(launch.calls for launch in self.launches):
            return "\n".join(["nothing profiled yet; call the module with options=RunOptions(profile=True)", *self._list_rest()])
        total = self.seconds or 1.0
        rows = [f"{'launch':24} {'engine':24} {'calls':>6} {'ms/call':>10} {'share':>6}"]
        for t in self.launches:
            per_call = 1e3 * t.seconds / max(t.calls, 1)
            rows.append(f"{t.launch:24} {t.engine:24} {t.calls:6d} {per_call:10.3f} {t.seconds / total:6.1%}")
        if self.threads is not None:
            rows.append(f"on {self.threads} thread{'' if self.threads == 1 else 's'}")
        return "\n".join([*rows, *self._list_rest()])

    def _list_rest(self) -> list[str]:
        lines = [] if self.traffic is None else [str(self.traffic)]
        return [*lines, *map(str, self.copies)]


class Recorder:
    """Accumulates launch times and timeline events; thread-safe."""

    def __init__(self, launches: tuple[tuple[str, str, str], ...], updates: Sequence[Update] = ()) -> None:
        self._launches = launches  # name, engine and device
        self._updates = updates
        self._copied = [(0, 0)] * len(updates)
        self._seconds = [0.0] * len(launches)
        self._calls = [0] * len(launches)
        self._moments: deque[Moment] = deque(maxlen=MAX_MOMENTS)
        self._lock = renew_after_fork(threading.Lock())

    def add(self, index: int, began: float, ended: float) -> None:
        """Record a run of a launch; ``index`` is its index in the plan, the times are in seconds by `time.perf_counter`."""
        moment = Moment(*self._launches[index], _current_thread(), began, ended)
        with self._lock:
            self._seconds[index] += ended - began
            self._calls[index] += 1
            self._moments.append(moment)

    def add_call(self, began: float, ended: float) -> None:
        """Record a whole call, including XRT's overhead."""
        self._moments.append(Moment("call", "call", HOST, _current_thread(), began, ended))

    def add_update(self, number: int, nbytes: int) -> None:
        """Record a copy of ``nbytes`` bytes from an output to an input; ``number`` is the index in the program's updates."""
        with self._lock:
            calls, copied = self._copied[number]
            self._copied[number] = calls + 1, copied + nbytes

    def add_copy(self, value: str, source: str, target: str, nbytes: int, began: float, ended: float) -> None:
        facts = (("from", source), ("to", target), ("bytes", nbytes))
        # The copy is shown in the track of the accelerator.
        device = source if target == HOST else target
        self._moments.append(Moment(f"copy {value} to {target}", "copy", device, _current_thread(), began, ended, facts))

    def read(self) -> Profile:
        with self._lock:
            rows = zip(self._launches, self._calls, self._seconds, strict=True)
            launches = tuple(LaunchTime(name, engine, calls, seconds, device) for (name, engine, device), calls, seconds in rows)
            pairs = zip(self._updates, self._copied, strict=True)
            copies = (UpdateCopy(x.input, x.output, n, nbytes, x.reason or RUN_TIME_COPY_REASON) for x, (n, nbytes) in pairs if n)
            return Profile(launches, moments=tuple(self._moments), copies=tuple(copies))


def _current_thread() -> tuple[int, str]:
    thread = threading.current_thread()
    return threading.get_ident(), thread.name


def make_trace(moments: Sequence[Moment], facts: Mapping[str, Any] = FrozenDict()) -> dict[str, Any]:
    """Build a trace in the Trace Event Format, as JSON values. ``facts`` are the metadata of the trace.

    The earliest event starts at time 0. Each device is a process of the trace, and each thread that uses the device is a track.
    """
    # An event comes before the events inside it.
    ordered = sorted(moments, key=lambda moment: (moment.began, -moment.ended))
    origin = ordered[0].began if ordered else 0.0
    devices = sorted({moment.device for moment in ordered}, key=lambda name: (name != HOST, name))  # the host first
    processes = {device: number for number, device in enumerate(devices, 1)}
    thread_names = {(moment.device, moment.thread[0]): moment.thread[1] for moment in ordered}
    # Within a process, tracks are in the order of their first events.
    sorted_tracks = sorted(thread_names, key=lambda track: processes[track[0]])
    tracks = {track: number for number, track in enumerate(sorted_tracks, 1)}
    events: list[dict[str, Any]] = []
    for device, pid in processes.items():
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": device}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0, "args": {"sort_index": pid}})
    for track, tid in tracks.items():
        pid = processes[track[0]]
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": thread_names[track]}})
    for moment in ordered:
        # Start and end are rounded to nanoseconds, so that an event stays inside the event around it.
        began = round(1e6 * (moment.began - origin), 3)
        ended = round(1e6 * (moment.ended - origin), 3)
        ids = {"pid": processes[moment.device], "tid": tracks[moment.device, moment.thread[0]]}
        times = {"ts": began, "dur": round(ended - began, 3)}
        events.append({"ph": "X", "name": moment.name, "cat": moment.category, **times, **ids, "args": dict(moment.facts)})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(facts)}
