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
    """Settings of this process, by `set_default_budget` and `set_budget_source`."""

    budget: int | None = None
    source: Callable[[], int | None] | None = None


def count_available_cores() -> int:
    """Count the CPU cores that this process may use: those of its affinity mask, or fewer if a cgroup has a smaller quota.

    A fractional quota is rounded up.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, get_cpu_quotas())]))


@lru_cache(maxsize=1)
def get_cpu_quotas() -> tuple[float, ...]:
    """Read the CPU quotas of this process, in cores. Cached, because reading takes as long as a call of a small model."""
    return tuple(read_cpu_quotas())


def resolve_thread_budget(requested: int | None) -> int:
    """Limit a requested number of threads to the number of available cores; None requests the default budget."""
    return get_default_budget() if requested is None else min(requested, count_available_cores())


def get_default_budget() -> int:
    """Return the default thread budget, which is at most the number of available cores.

    It was set by `set_default_budget`; else it is the number that the budget source grants; else it is the number of cores.
    """
    granted = _Process.budget if _Process.budget is not None else find_granted_threads()
    return count_available_cores() if granted is None else min(granted, count_available_cores())


def set_default_budget(threads: int | None) -> None:
    """Set the default thread budget of modules that are created from now on; None removes the setting."""
    _Process.budget = threads


def set_budget_source(source: Callable[[], int | None] | None) -> None:
    """Set a callback that returns how many threads a scheduler granted to this process, or None if it sets no limit.

    For integrations such as Ray, whose actors may use fewer cores than their process could. The callback runs whenever a module
    is created or loaded. ``threads=`` of a module and `set_default_budget` have precedence. None removes the callback.
    """
    _Process.source = source


def find_granted_threads() -> int | None:
    """Ask the budget source how many threads it grants, at least 1; None if there is no source, or it sets no limit."""
    granted = None if _Process.source is None else _Process.source()
    return None if granted is None else max(1, granted)


def read_cpu_quotas(groups: Path = _CONTROL_GROUPS, memberships: Path = _MEMBERSHIPS) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of this process's control groups and their ancestors (Linux cgroup v1 and v2)."""
    for line in _read_text(memberships).splitlines():
        # Lines are hierarchy:controllers:path; cgroup v2 has no controllers.
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _list_quotas(groups, path, _read_quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _list_quotas(groups / controllers, path, _read_quota_v1)


def _list_quotas(root: Path, path: str, read_quota: Callable[[Path], float | None]) -> Iterator[float]:
    """Yield the quotas of a control group and its ancestors; ``read_quota`` returns None for a group without a quota."""
    inner = PurePosixPath(path.lstrip("/"))
    for group in (inner, *inner.parents):
        # In a cgroup namespace the path may lead out of the visible tree.
        if ".." not in group.parts and (quota := read_quota(root / group)) is not None:
            yield quota


def _read_quota_v2(group: Path) -> float | None:
    """Read ``cpu.max``: the quota (``max`` for no limit) and the period, both in microseconds."""
    quota, _, period = _read_text(group / "cpu.max").strip().partition(" ")
    return _parse_cores(quota, period)


def _read_quota_v1(group: Path) -> float | None:
    return _parse_cores(_read_text(group / "cpu.cfs_quota_us").strip(), _read_text(group / "cpu.cfs_period_us").strip())


def _parse_cores(quota: str, period: str) -> float | None:
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
