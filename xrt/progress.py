"""How far a long search or compile is: one line that shows itself on a terminal or in a notebook, and nowhere else.

The line appears after two seconds, on standard error or as a cell's output, and changes in place. It is the only output that the
library makes of its own accord; piped, redirected and captured streams get nothing, worker processes write nothing, and
``progress=False`` or ``XRT_PROGRESS=off`` in the environment turn it off.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, TypeAlias

from xrt.forking import renew_after_fork

__all__ = [
    "SWITCH",
    "NotebookLine",
    "ProgressLine",
    "Tell",
    "TerminalLine",
    "claim_display",
    "find_display",
    "release_display",
    "show_progress",
]

SWITCH = "XRT_PROGRESS"
"""The environment variable; ``off`` shows no progress. Worker processes have it from `xrt.processes`."""
DELAY = 2.0
"""Seconds that work may take before its progress is shown."""
PAUSE = 0.25
"""Seconds between two looks at what there is to show."""
ERASE = "\r\x1b[2K"

Tell: TypeAlias = Callable[[str], None]
"""Takes what is being done, in a few words."""


class Display(Protocol):
    """Where one line is shown, and replaced by the next."""

    def show(self, text: str) -> None: ...

    def close(self, last: str) -> None:
        """Show nothing more; ``last`` says what was done, where the place keeps its last line."""


class TerminalLine:
    """The last line of a terminal; nothing of it stays when the work is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._write(ERASE + (text if len(text) <= width else f"{text[: width - 3]}..."))

    def close(self, last: str) -> None:
        self._write(ERASE)

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "ascii"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


class NotebookLine:
    """An output of the notebook's cell, as plain text; the last line stays, as other outputs of a cell do."""

    def __init__(self, display: Any) -> None:
        self._display = display  # IPython's function
        self._handle: Any = None

    def show(self, text: str) -> None:
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self, last: str) -> None:
        self.show(last)


class ProgressLine:
    """What is shown of one piece of work, by a clock; `tick` is to be called now and then."""

    def __init__(self, display: Display, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._title = title
        self._clock = clock
        self._began = clock()
        self._stage = ""
        self._shown = ""

    def tell(self, stage: str) -> None:
        """Say what is being done; it is shown with the next tick."""
        self._stage = stage

    def tick(self) -> None:
        """Show the line, once the work has taken long enough, and where it has changed."""
        elapsed = self._clock() - self._began
        if elapsed < DELAY:
            return
        text = _clean(f"xrt: {self._title}, {elapsed:.0f} s{': ' if self._stage else ''}{self._stage}")
        if text != self._shown:
            self._display.show(text)
            self._shown = text

    def close(self) -> None:
        """Take the line away, if it was shown."""
        if self._shown:
            self._display.close(_clean(f"xrt: {self._title} took {self._clock() - self._began:.1f} s"))


def _clean(text: str) -> str:
    """Return the text without what could steer a terminal: names come from models."""
    return "".join(char if char.isprintable() else "?" for char in text)


def find_display() -> Display | None:
    """Return where progress can be shown: a notebook's cell, or a terminal; None where there is neither, or in a worker."""
    try:
        return _find_display()
    except Exception:  # noqa: BLE001  # standard error may be any object: one without isatty, one that is closed or detached
        return None


def _find_display() -> Display | None:
    if os.environ.get(SWITCH, "").strip().lower() == "off" or _is_child():
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is not None and getattr(shell, "kernel", None) is not None:
        return NotebookLine(ipython.display.display)
    stream = sys.stderr
    if stream is None or stream.closed or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    return TerminalLine(stream)


def _is_child() -> bool:
    """Whether this is a process that `multiprocessing` has started, such as a loader of data."""
    module = sys.modules.get("multiprocessing")
    return module is not None and module.parent_process() is not None


_claimed = renew_after_fork(threading.Lock())
"""Locked by the code that shows progress: there is one line."""


def claim_display() -> bool:
    """Whether the caller may show progress from now on, until `release_display`; False where another does."""
    return _claimed.acquire(blocking=False)


def release_display() -> None:
    """Let others show progress; only after a `claim_display` that was True."""
    _claimed.release()


@contextmanager
def show_progress(title: str, *, enabled: bool = True) -> Iterator[Tell]:
    """Show how far the work inside is, by itself after `DELAY` seconds; the function that is given takes what is being done.

    Nothing is shown where not ``enabled``, where there is no display, or where another piece of work is shown already.
    """
    display = find_display() if enabled else None
    if display is None or not claim_display():
        yield _ignore
        return
    line, ended = ProgressLine(display, title), threading.Event()
    ticking = threading.Thread(target=_tick, args=(line, ended), name="xrt-progress", daemon=True)
    try:
        started = _start(ticking)
        try:
            yield line.tell if started else _ignore
        finally:
            if started:
                ended.set()
                ticking.join()
                _try(line.close)
    finally:
        release_display()


def _start(thread: threading.Thread) -> bool:
    """Start a thread, and return whether there was room for one."""
    try:
        thread.start()
    except RuntimeError:  # the system has no more threads, or the interpreter is ending
        return False
    return True


def _tick(line: ProgressLine, ended: threading.Event) -> None:
    if ended.wait(DELAY):
        return
    while _try(line.tick) and not ended.wait(PAUSE):
        pass


def _try(show: Callable[[], None]) -> bool:
    """Show something; a terminal or a notebook that has gone away ends the showing, and not the work."""
    try:
        show()
    except Exception:  # noqa: BLE001  # whatever a stream or a kernel raises
        return False
    return True


def _ignore(stage: str) -> None:
    """Take no note: nothing is shown."""
