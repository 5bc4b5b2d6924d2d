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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TextIO, TypeAlias

from xrt.forking import renew_after_fork

PROGRESS_VARIABLE = "XRT_PROGRESS"
"""The environment variable; ``off`` disables progress. `xrt.processes` sets it for worker processes."""
DELAY_SECONDS = 2.0  # work that ends sooner shows no progress
UPDATE_SECONDS = 0.25
ERASE_LINE = "\r\x1b[2K"  # moves the cursor to the start of the line, and erases the line

ReportStage: TypeAlias = Callable[[str], None]
"""Sets the stage that the progress line shows, in a few words."""


class TerminalLine:
    """The last line of a terminal; erased when the work is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        shown_text = text if len(text) <= width else f"{text[: width - 3]}..."
        self._write(f"{ERASE_LINE}{shown_text}")

    def close(self, last: str) -> None:
        self._write(ERASE_LINE)

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
    """The progress of one piece of work; call `tick` regularly.

    A display has ``show(text)``, which replaces its line, and ``close(summary)``, which erases the line or shows the summary.
    """

    def __init__(self, display: Any, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._display, self._title, self._clock = display, title, clock
        self._start = clock()
        self._stage = ""
        self._shown_text = ""

    def set_stage(self, stage: str) -> None:
        """Set the text of the current stage; the next `tick` shows it."""
        self._stage = stage

    def tick(self) -> None:
        """Update the line if it changed and the work has taken long enough."""
        elapsed = self._clock() - self._start
        if elapsed < DELAY_SECONDS:
            return
        stage = f": {self._stage}" if self._stage else ""
        text = _replace_control_characters(f"xrt: {self._title}, {elapsed:.0f} s{stage}")
        if text != self._shown_text:
            self._display.show(text)
            self._shown_text = text

    def close(self) -> None:
        if self._shown_text:
            self._display.close(_replace_control_characters(f"xrt: {self._title} took {self._clock() - self._start:.1f} s"))


def _replace_control_characters(text: str) -> str:
    """Replace control characters by question marks: names come from models and could contain terminal escapes."""
    return "".join(char if char.isprintable() else "?" for char in text)


def find_display() -> TerminalLine | NotebookLine | None:
    """Create a display for progress, in the notebook cell or on the terminal; None if there is neither, or in a worker."""
    with suppress(Exception):  # sys.stderr may be closed or an object without isatty; multiprocessing may be half imported
        processes = sys.modules.get("multiprocessing")
        if os.environ.get(PROGRESS_VARIABLE, "").strip().lower() == "off" or (processes and processes.parent_process()):
            return None
        ipython = sys.modules.get("IPython")
        if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
            return NotebookLine(ipython.display.display)
        stream = sys.stderr
        if stream is not None and not stream.closed and stream.isatty() and os.environ.get("TERM") != "dumb":
            return TerminalLine(stream)
    return None


# Locked while progress is shown: there is only one line.
_display_lock = renew_after_fork(threading.Lock())


def claim_display() -> bool:
    """Reserve the display until `release_display`; False if it is in use."""
    return _display_lock.acquire(blocking=False)


def release_display() -> None:
    _display_lock.release()


def show_progress(title: str, *, enabled: bool = True) -> AbstractContextManager[ReportStage | None]:
    """Show progress of a ``with`` block after `DELAY_SECONDS` seconds; its value sets the text of the current stage.

    Nothing is shown, and the value is None, if ``enabled`` is False, if there is no display, or if the display is in use.
    """
    display = find_display() if enabled else None
    return nullcontext() if display is None or not claim_display() else _show_on(display, title)


@contextmanager
def _show_on(display: TerminalLine | NotebookLine, title: str) -> Iterator[ReportStage]:
    line, is_done = ProgressLine(display, title), threading.Event()
    updater = threading.Thread(target=_update_until_done, args=(line, is_done), name="xrt-progress", daemon=True)
    try:
        with suppress(RuntimeError):  # no more threads available, or interpreter shutdown
            updater.start()
        yield line.set_stage
    finally:
        is_done.set()
        if updater.ident is not None:  # it was started
            updater.join()
            with suppress(Exception):
                line.close()
        release_display()


def _update_until_done(line: ProgressLine, is_done: threading.Event) -> None:
    delay = DELAY_SECONDS
    with suppress(Exception):  # an error of a closed terminal or notebook ends the display, not the work
        while not is_done.wait(delay):
            line.tick()
            delay = UPDATE_SECONDS
