"""Helpers for engines that use a library: shorten its error messages, hide a module from it, measure its allocations."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import ClassVar, Self

from xrt.forking import renew_after_fork

_NOISE = (
    # ONNX Runtime
    r"\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"Load model from .*? failed:",
    r"(?:Error in execution|Exception during (?:loading|initialization)): |This is an invalid model\. ",
    r"In Node, \(.*\) -> \([^)]*\) , Error ",
    r"Non-zero status code returned while running \w+ node\. Name:'[^']*' Status Message: ",
    r"\S*\.(?:cc|h):\d+ ",  # source location of a failed check
    r"^.*::\S*\(.*\).* was false\. (?=\S)",
    r"^[\w:*&<> ]*onnxruntime::[\w:~<>]+\([^)]*\)(?:::<lambda\(\)>| const)?(?: \[with [^\]]*\])? ",  # the failing function
    # OpenVINO
    r"Exception from \S+:\d+: ",
    r"Check '.*?' failed at \S+:\d+: ",
    r"FrontEnd API failed with \w+: |Errors during ONNX translation: |Model wasn't fully converted\. Summary: -- ",
    r"While validating (?:ONNX )?node '.*?'(?: with friendly_name '.*?')?: ",
    r"To facilitate the conversion of unsupported operations.*$",
    r"^.*Check failed: \(.*?\)(?: is false)?: (?=\S)",  # of TVM
    r"^[A-Z_]+: ",  # status code of XLA
)
"""Parts of error messages that do not help a user, as regular expressions, in order of removal."""


def summarize_error(error: BaseException, limit: int = 200) -> str:
    r"""Shorten the message of a library's error: one line, without status codes, source locations and stack traces.

    >>> summarize_error(RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation"))
    'Could not find an implementation'
    >>> summarize_error(RuntimeError("Exception from src/core.cpp:105:\nCheck 'ok' failed at src/x.cpp:1:\nNo rule for: NoSuch"))
    'No rule for: NoSuch'
    """
    message = re.split(r"\n\s*Stack ?trace", str(error))[0]
    # With a space at the end, a pattern that ends with a space also matches there.
    text = f"{' '.join(message.split())} "
    for pattern in _NOISE:
        text = re.sub(pattern, "", text)
    return shorten(text.strip(" .:") or type(error).__name__, limit)


def shorten(text: str, limit: int) -> str:
    """Truncate the text to ``limit`` characters, including the ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class _HidingFinder:
    """An import finder that makes the import of a module fail in the thread that created the finder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name == self.name and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def hide_module(name: str, *, even_imported: bool = False) -> Iterator[None]:
    """Make imports of a module in this thread fail within the ``with`` block, as if it was not installed.

    A module that is already imported is hidden only with ``even_imported``. Then other threads may import it a second time.
    """
    finder = _HidingFinder(name)
    # Insert it before the finders that would find the module.
    sys.meta_path.insert(0, finder)
    # Python does not query finders for a module in `sys.modules`, so remove it there.
    module = sys.modules.pop(name, None) if even_imported else None
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if module is not None:
            sys.modules[name] = module


class _Counts(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def _count_allocated_bytes() -> int | None:
    """Count the bytes that the C library's allocator has given out; None if the C library is not glibc."""
    try:
        read_counts = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # not glibc, or not Linux
        return None
    read_counts.restype = _Counts
    counts = read_counts()
    return int(counts.uordblks + counts.hblkhd)


class AllocationTracker:
    """Measures the memory that the process allocates in the ``with`` block, in which a session of a library is opened.

    If several blocks run at the same time, only their total is known, and each gets an equal part.
    """

    # The state of all blocks that run at the same time.
    _lock = renew_after_fork(threading.Lock())
    _active_blocks: ClassVar[int] = 0
    _bytes_before: ClassVar[int | None] = None
    _finished: ClassVar[list[AllocationTracker]] = []

    nbytes: int | None = None
    """The allocated bytes. None if the C library does not report them, the block failed, or a block is still active."""

    def __enter__(self) -> Self:
        shared = AllocationTracker
        with shared._lock:
            if not shared._active_blocks:
                shared._bytes_before, shared._finished = _count_allocated_bytes(), []
            shared._active_blocks += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        shared = AllocationTracker
        with shared._lock:
            shared._active_blocks -= 1
            if error is None:  # a failed block has freed its memory
                shared._finished.append(self)
            bytes_after = _count_allocated_bytes()
            if not shared._active_blocks and bytes_after is not None and shared._bytes_before is not None:
                for tracker in shared._finished:
                    tracker.nbytes = max(0, bytes_after - shared._bytes_before) // len(shared._finished)
