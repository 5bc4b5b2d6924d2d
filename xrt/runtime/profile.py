"""How long each launch took."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from xrt.runtime.devices.traffic import Traffic

__all__ = ["LaunchTime", "Profile", "Recorder"]


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """The time spent in one launch over the profiled calls."""

    launch: str
    engine: str
    calls: int
    seconds: float
    """All calls together."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The launches of a program in their order, with their times."""

    launches: tuple[LaunchTime, ...]
    threads: int | None = None
    """The thread budget that the times are of; None where nobody said."""
    traffic: Traffic | None = None
    """What crossed between devices over all calls, the others included; None on the CPU alone."""

    @property
    def seconds(self) -> float:
        """Time in launches, all calls together; XRT's own work between them is not in it."""
        return sum(launch.seconds for launch in self.launches)

    def __str__(self) -> str:
        if not any(launch.calls for launch in self.launches):
            rest = f"\n{self.traffic}" if self.traffic else ""
            return "nothing profiled yet; call the module with options=RunOptions(profile=True)" + rest
        total = self.seconds or 1.0
        rows = [f"{'launch':24} {'engine':24} {'calls':>6} {'ms/call':>10} {'share':>6}"]
        for t in self.launches:
            per_call = 1e3 * t.seconds / max(t.calls, 1)
            rows.append(f"{t.launch:24} {t.engine:24} {t.calls:6d} {per_call:10.3f} {t.seconds / total:6.1%}")
        if self.threads is not None:
            rows.append(f"on {self.threads} thread{'s' * (self.threads != 1)}")
        return "\n".join([*rows, *([str(self.traffic)] if self.traffic else [])])


class Recorder:
    """Adds up launch times; safe to use from several threads."""

    def __init__(self, launches: tuple[tuple[str, str], ...]) -> None:
        self._names = launches
        self._seconds = [0.0] * len(launches)
        self._calls = [0] * len(launches)
        self._lock = threading.Lock()

    def add(self, index: int, seconds: float) -> None:
        with self._lock:
            self._seconds[index] += seconds
            self._calls[index] += 1

    def read(self) -> Profile:
        with self._lock:
            rows = zip(self._names, self._calls, self._seconds, strict=True)
            return Profile(tuple(LaunchTime(name, engine, calls, seconds) for (name, engine), calls, seconds in rows))
