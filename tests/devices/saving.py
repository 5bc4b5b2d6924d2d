"""An engine that can save what it compiles, and so may compile in a process of its own and run in this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xrt.engines import CompileContext, Executable
from xrt.engines.toy import Toy
from xrt.errors import CompileRefused


@dataclass(frozen=True)
class Saving(Toy):
    """Toy, which says that it saves, and on a device after all does not."""

    name: ClassVar[str] = "saving"

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        raise CompileRefused("it is on a device")
