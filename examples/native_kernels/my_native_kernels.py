"""An engine that adds native kernels to toy: those of my_native_kernels.cc in the same directory.

Without a new engine, the engine spec ``toy{libraries=/path/to/libmy_native_kernels.so}`` selects the same kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from xrt.engines.toy import Toy


@dataclass(frozen=True)
class MyNativeKernels(Toy):
    """Toy with the kernels of the library."""

    name: ClassVar[str] = "my_native_kernels"
    libraries: tuple[str, ...] = (str(Path(__file__).with_name("libmy_native_kernels.so")),)
