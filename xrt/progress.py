"""Progress of long searches and compiles, as a single line on a terminal or in a notebook.

The line appears after two seconds, on standard error or as a cell's output, and is updated in place. It is the only output
that the library prints unasked. Piped, redirected and captured streams and worker processes get none; disable it with
``progress=False`` or ``XRT_PROGRESS=off`` in the environment.
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

SWITCH = "XRT_PROGRESS"
"""The environment variable; ``off`` disables progress. `xrt.processes` sets it for worker processes."""
DELAY = 2.0  # seconds before progress is shown
PAUSE = 0.25  # seconds between updates
ERASE = "\r\x1b[2K"

Tell: TypeAlias = Callable[[str], None]
"""Reports the current stage in a few words."""


class Display(Protocol):
    """Shows one line, which the next one replaces."""

    def show(self, text: str) -> None: ...

    def close(self, last: str) -> None:
        """Stop; ``last`` is a summary, for displays that keep their last line."""


class TerminalLine:
    """The last line of a terminal; erased when the work is done."""

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
    """A plain-text output of the notebook cell; the last line remains, as for other outputs."""

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
    """The progress of one piece of work; call `tick` regularly."""

    def __init__(self, display: Display, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._title = title
        self._clock = clock
        self._began = clock()
        self._stage = ""
        self._shown = ""

    def tell(self, stage: str) -> None:
        """Set the stage, which the next tick shows."""
        self._stage = stage

    def tick(self) -> None:
        """Update the line if it changed and the work has taken long enough."""
        elapsed = self._clock() - self._began
        if elapsed < DELAY:
            return
        text = _clean(f"xrt: {self._title}, {elapsed:.0f} s{': ' if self._stage else ''}{self._stage}")
        if text != self._shown:
            self._display.show(text)
            self._shown = text

    def close(self) -> None:
        """Remove the line if it was shown."""
        if self._shown:
            self._display.close(_clean(f"xrt: {self._title} took {self._clock() - self._began:.1f} s"))


def _clean(text: str) -> str:
    """Replace control characters, because names come from models and could contain terminal escapes."""
    return "".join(char if char.isprintable() else "?" for char in text)


def find_display() -> Display | None:
    """A display for progress: the notebook cell or the terminal; None if there is neither, or in a worker process."""
    try:
        return _find_display()
    except Exception:  # noqa: BLE001  # sys.stderr may be any object: without isatty, closed or detached
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
    """Whether `multiprocessing` started this process, for example as a data loader."""
    module = sys.modules.get("multiprocessing")
    return module is not None and module.parent_process() is not None


# Held while progress is shown: there is only one line.
_claimed = renew_after_fork(threading.Lock())


def claim_display() -> bool:
    """Reserve the display until `release_display`; False if it is in use."""
    return _claimed.acquire(blocking=False)


def release_display() -> None:
    """Release the display after a successful `claim_display`."""
    _claimed.release()


@contextmanager
def show_progress(title: str, *, enabled: bool = True) -> Iterator[Tell]:
    """Show progress of the enclosed block after `DELAY` seconds; yields a function that sets the current stage.

    Nothing is shown unless ``enabled``, without a display, or if the display is in use.
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
    """Start a thread; return whether that succeeded."""
    try:
        thread.start()
    except RuntimeError:  # no more threads available, or interpreter shutdown
        return False
    return True


def _tick(line: ProgressLine, ended: threading.Event) -> None:
    # Work that ends within the delay shows nothing.
    if ended.wait(DELAY):
        return
    while _try(line.tick) and not ended.wait(PAUSE):
        pass


def _try(show: Callable[[], None]) -> bool:
    """Call ``show``; return False on errors, so that a closed terminal or notebook stops the display and not the work."""
    try:
        show()
    except Exception:  # noqa: BLE001  # whatever a stream or a kernel raises
        return False
    return True


def _ignore(stage: str) -> None:
    """Discard the stage."""
