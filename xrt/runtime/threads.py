"""The thread budget: the maximum number of threads that all engines of a module may use together."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIPS = Path("/proc/self/cgroup")


class _Process:
    """Process-wide settings."""

    budget: int | None = None
    source: Callable[[], int | None] | None = None


def available_cores() -> int:
    """Number of CPU cores available to this process: its affinity mask, or its cgroup quota if smaller.

    A fractional quota is rounded up. Quotas are read once per process.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, process_quotas())]))


@lru_cache(maxsize=1)
def process_quotas() -> tuple[float, ...]:
    """CPU quotas of this process, in cores. They are read once, because reading takes as long as a call of a small model."""
    return tuple(read_cpu_quotas())


def resolve_thread_budget(requested: int | None) -> int:
    """The thread budget for a requested number of threads, or the default if it is None; at most the number of cores."""
    return default_budget() if requested is None else min(requested, available_cores())


def default_budget() -> int:
    """Default number of threads: that of `set_default_budget`, else what the budget source grants, else all available cores.

    Never more than the available cores.
    """
    granted = _Process.budget if _Process.budget is not None else find_granted_threads()
    return available_cores() if granted is None else min(granted, available_cores())


def set_default_budget(threads: int | None) -> None:
    """Set the default budget of modules created from now on; None resets it to the number of cores."""
    _Process.budget = threads


def set_budget_source(source: Callable[[], int | None] | None) -> None:
    """Set a callback that returns the number of threads granted by a scheduler, or None if it grants none.

    For integrations: a cluster actor may have fewer cores than its process can use. The callback runs whenever a module is
    created or loaded; None removes it. An explicit budget, of a module or by `set_default_budget`, takes precedence.
    """
    _Process.source = source


def find_granted_threads() -> int | None:
    """The number of threads that the budget source grants, at least 1; None if there is no source or it returns None."""
    granted = None if _Process.source is None else _Process.source()
    return None if granted is None else max(1, granted)


# ------------------------------------------------------------------ quotas of control groups


def read_cpu_quotas(groups: Path = _CONTROL_GROUPS, memberships: Path = _MEMBERSHIPS) -> Iterator[float]:
    """Yield each CPU limit, in cores, of this process's control groups and their ancestors (Linux cgroup v1 and v2)."""
    for line in _read_text(memberships).splitlines():
        # Lines are hierarchy:controllers:path; cgroup v2 has no controllers.
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _list_limits(groups, path, _read_quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _list_limits(groups / controllers, path, _read_quota_v1)


def _list_limits(root: Path, path: str, quota: Callable[[Path], float | None]) -> Iterator[float]:
    """Yield the limits of a control group and its ancestors. ``quota`` reads a limit; None is skipped."""
    inner = PurePosixPath(path.lstrip("/"))
    for group in (inner, *inner.parents):
        # In a cgroup namespace the path may lead out of the visible tree.
        if ".." not in group.parts and (limit := quota(root / group)) is not None:
            yield limit


def _read_quota_v2(group: Path) -> float | None:
    """Read ``cpu.max``, two numbers of microseconds: quota (or ``max`` for no limit) and period."""
    quota, _, period = _read_text(group / "cpu.max").strip().partition(" ")
    return _parse_cores(quota, period)


def _read_quota_v1(group: Path) -> float | None:
    return _parse_cores(_read_text(group / "cpu.cfs_quota_us").strip(), _read_text(group / "cpu.cfs_period_us").strip())


def _parse_cores(quota: str, period: str) -> float | None:
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
