"""What a caller may ask of a compile and of a run, apart from an engine's own fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from xrt.engines.accelerator import Accelerator
from xrt.errors import OptionError, did_you_mean

__all__ = ["CompileContext", "ExecutionOptions", "Precision", "RunOptions"]

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """What holds for a whole compile, and so is part of the signature. An engine refuses what it does not honour."""

    precision: Precision = "fp32"
    """``fp32`` computes in the model's own types; the others let the engine lower float32 to that type."""
    strict_types: bool = False
    """With a lower precision: compute exactly in it, or refuse; otherwise the engine may keep float32 where it is better."""
    calibration_table: str | None = None
    """Path of the int8 calibration table."""
    threads: int | None = None
    """What all engines together may use; None is the process's default: the cores that it may use."""
    max_workspace_size: int | None = None
    """Bytes of scratch memory that an engine may take; None is its own default."""
    max_batch_size: int | None = None
    """Largest leading extent that a call may give to a symbolic dimension; a larger one is an InputError. None is no limit."""

    def __post_init__(self) -> None:
        known = get_args(Precision)
        if self.precision not in known:
            raise OptionError(
                f"precision must be one of {', '.join(known)}; got {self.precision!r}.{did_you_mean(str(self.precision), known)}"
            )
        for name in ("threads", "max_workspace_size", "max_batch_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} must be a positive integer or None; got {value!r}")

    def unusual(self) -> dict[str, Any]:
        """Return the fields that ask for more than the default and that an engine must honour or refuse.

        `threads` and `max_batch_size` are not among them: the context hands out the one, the module keeps the other.
        """
        default = ExecutionOptions()
        names = ("precision", "strict_types", "calibration_table", "max_workspace_size")
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(default, n)}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What holds for one call."""

    out: Sequence[Any] | None = None
    """One caller-owned buffer per output, C-contiguous and of its exact type and shape, or None in a place for a fresh one."""
    stream: Any = None
    """The CUDA stream to run on, CuPy's, PyTorch's or an address; None is the module's own. On CPU it must be None."""
    block: bool = False
    """Whether a call on a device waits for its results; on CPU it always does."""
    profile: bool = False
    """Whether to record the time of each launch."""


@dataclass(frozen=True, slots=True)
class CompileContext:
    """What an engine is told beside the Function."""

    options: ExecutionOptions = ExecutionOptions()
    device: str = "cpu"
    threads: int = 1
    """The thread budget: what this engine's executable may use while it runs."""
    workdir: Path | None = None
    """The one directory the engine may write to while it compiles; None when it may write nowhere."""
    keep: Path | None = None
    """A directory of the engine's own that stays, for what it learns of this machine; None when nothing is to be kept."""
    report: Callable[[str], object] | None = field(default=None, compare=False)
    """Told, in a few words, how a long compile goes; None when nobody listens."""
    accelerator: Accelerator | None = None
    """The device, where that is not the CPU."""
    is_kept: bool = field(default=False, compare=False)
    """Whether `save` follows the compile: an engine may compile so that its work is of use to both."""
