"""An engine of one's own with native kernels: toy, and the kernels of my_native_kernels.cc in the same directory.

The engine spec ``toy{libraries=/path/to/libmy_native_kernels.so}`` gives the same kernels without an engine of another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from xrt.engines.toy import Toy


@dataclass(frozen=True)
class MyNativeKernels(Toy):
    """Toy, and the kernels of the library."""

    name: ClassVar[str] = "my_native_kernels"
    libraries: tuple[str, ...] = (str(Path(__file__).with_name("libmy_native_kernels.so")),)
