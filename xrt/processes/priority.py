"""A lower priority for a process whose work can wait."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["lower_priority"]

AUTOGROUP = Path("/proc/self/autogroup")
TRIES = 5


def lower_priority(niceness: int) -> None:
    """Raise the nice value of this process, and of its session as a whole, by ``niceness``.

    Where Linux groups processes by session (sched_autogroup_enabled, sched(7)), a nice value counts only within the session, and
    the session has one of its own. A process in a session of its own otherwise gets as much as the one that started it.
    """
    own = str(os.nice(niceness))
    for _ in range(TRIES):
        try:
            AUTOGROUP.write_text(own, encoding="ascii")
        except BlockingIOError:  # the system takes one such change of unprivileged processes each tenth of a second
            time.sleep(0.1)
        except OSError:  # a system without such groups
            return
        else:
            return
