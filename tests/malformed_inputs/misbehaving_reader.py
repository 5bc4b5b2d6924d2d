"""What `tests.malformed_inputs.child` is, with one reader that does all that a reader must not."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.malformed_inputs import child
from tests.malformed_inputs.case import Crafted, Reader
from xrt.errors import ModelError


def eat() -> None:
    bytearray(b"x") * (200 << 20)


def hang() -> None:
    while True:
        pass


def refuse_in_silence() -> None:
    raise ModelError("")


SINS: Mapping[str, Callable[[], object]] = {
    "good": lambda: None,
    "raises": lambda: 1 // 0,
    "crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hangs": hang,
    "silent": refuse_in_silence,
    "eats": eat,
    "exits": lambda: sys.exit(3),
}


def sin(path: Path) -> None:
    SINS[path.name]()


def crafted() -> Mapping[str, Crafted]:
    return {name: Crafted({name: b"12345"}, refused=False) for name in SINS}


def main(handle: str, folder: str) -> None:
    child.READERS = {"sinner": Reader("sinner", sin, tuple, (), crafted)}
    child.CPU_SECONDS = 1.0
    child.main(handle, folder)
