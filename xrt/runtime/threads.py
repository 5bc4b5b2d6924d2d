"""The thread budget: how many threads all engines of a module together may use."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

__all__ = [
    "available_cores",
    "default_budget",
    "find_granted_threads",
    "resolve_thread_budget",
    "set_budget_source",
    "set_default_budget",
]

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class _Process:
    """Settings of this process."""

    budget: int | None = None
    source: Callable[[], int | None] | None = None


def available_cores() -> int:
    """Return how many cores' worth of time this process may use: those that it may run on, or its quota where that is less.

    A quota (a container's, in its control group) of a part of a core counts as a whole one. Quotas are read once per process.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, own_quotas())]))


@lru_cache(maxsize=1)
def own_quotas() -> tuple[float, ...]:
    """Return the quotas of this process, as they were when it first asked: reading them costs as much as a small model."""
    return tuple(read_cpu_quotas())


def resolve_thread_budget(asked: int | None) -> int:
    """Return the threads to use for what was asked: None is the process's default, and more than the cores are the cores."""
    return default_budget() if asked is None else min(asked, available_cores())


def default_budget() -> int:
    """Return the budget of a module that names none: of `set_default_budget`, else of `set_budget_source`, else the cores.

    It is never more than the cores.
    """
    asked = _Process.budget if _Process.budget is not None else find_granted_threads()
    return available_cores() if asked is None else min(asked, available_cores())


def set_default_budget(threads: int | None) -> None:
    """Set the budget of modules made from now on that name none; None is the cores."""
    _Process.budget = threads


def set_budget_source(source: Callable[[], int | None] | None) -> None:
    """Set a function that returns the threads which a scheduler has granted to this process, or None where it has granted none.

    It is for integrations: an actor of a cluster has fewer cores than its process may run on. The function is called whenever a
    module is made or loaded; None removes it. A budget that a user names, for a module or by `set_default_budget`, goes first.
    """
    _Process.source = source


def find_granted_threads() -> int | None:
    """Return what `set_budget_source` grants, at least 1; None where there is no source, or it grants nothing."""
    granted = None if _Process.source is None else _Process.source()
    return None if granted is None else max(1, granted)


# ------------------------------------------------------------------ quotas of control groups


def read_cpu_quotas(groups: Path = _CONTROL_GROUPS, own: Path = _OWN_GROUPS) -> Iterator[float]:
    """Yield each limit, in cores, that a control group of this process, or one around it, sets (Linux, versions 1 and 2)."""
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _each(groups, path, _quota_2)
        elif "cpu" in controllers.split(","):
            yield from _each(groups / controllers, path, _quota_1)


def _each(root: Path, path: str, quota: Callable[[Path], float | None]) -> Iterator[float]:
    """Yield the limits of a group and of all around it; those that cannot be seen from here have none."""
    inner = PurePosixPath(path.lstrip("/"))
    for group in (inner, *inner.parents):
        if ".." not in group.parts and (limit := quota(root / group)) is not None:
            yield limit


def _quota_2(group: Path) -> float | None:
    """Read ``cpu.max``: microseconds per period, or ``max``."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    return _cores(quota, period)


def _quota_1(group: Path) -> float | None:
    return _cores(_text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip())


def _cores(quota: str, period: str) -> float | None:
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
