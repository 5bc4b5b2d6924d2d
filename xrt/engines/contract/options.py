"""Options of a compile and of a run that are common to all engines, and the context that an engine compiles in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from xrt.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator

__all__ = ["LOWER_PRECISIONS", "CompileContext", "ExecutionOptions", "Precision", "RunOptions"]

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
LOWER_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "int8")


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Options of a compile; part of the signature. An engine declines those that it does not implement."""

    precision: Precision = "fp32"
    """``fp32`` computes in the types of the model; the others allow an engine to compute float32 in that type."""
    strict_types: bool = False
    """With a lower precision: compute everything in it or decline. If False, an engine may keep float32 for some operators."""
    calibration_table: str | None = None
    """Path of the int8 calibration table."""
    threads: int | None = None
    """Thread budget of all engines together; None for the number of cores that the process may use."""
    max_workspace_size: int | None = None
    """Scratch memory of an engine in bytes; None for the engine's default."""
    max_batch_size: int | None = None
    """Largest size of a symbolic first dim in a call; a larger one raises InputError. None for no limit."""

    def __post_init__(self) -> None:
        known = get_args(Precision)
        if self.precision not in known:
            raise OptionError(
                f"precision must be one of {', '.join(known)}; got {self.precision!r}.{did_you_mean(str(self.precision), known)}"
            )
        for name in ("threads", "max_workspace_size", "max_batch_size"):
            value = getattr(self, name)
            # bool is a subclass of int.
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} must be a positive integer or None; got {value!r}")

    def unusual(self) -> dict[str, Any]:
        """The options that differ from their defaults and that an engine must implement or decline.

        Excludes `threads`, which the context passes to every engine, and `max_batch_size`, which the module checks.
        """
        default = ExecutionOptions()
        names = ("precision", "strict_types", "calibration_table", "max_workspace_size")
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(default, n)}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of one call."""

    out: Sequence[Any] | None = None
    """One buffer per output, C-contiguous and of its exact type and shape, or None for a new array."""
    stream: Any = None
    """CUDA stream to run on: CuPy's, PyTorch's or an address; None for the module's own. Must be None on the CPU."""
    block: bool = False
    """Whether a call on a device waits for its results. Calls on the CPU always wait."""
    profile: bool = False
    """Whether to record the time of each launch."""


@dataclass(frozen=True, slots=True)
class CompileContext:
    """The settings and resources of one compile."""

    options: ExecutionOptions = ExecutionOptions()
    device: str = "cpu"
    threads: int = 1
    """Thread budget of the executable while it runs."""
    workdir: Path | None = None
    """The only directory that the engine may write to while it compiles; None for none."""
    keep: Path | None = None
    """A permanent directory for data about this machine, such as tuning results; None to keep nothing."""
    accelerator: Accelerator | None = None
    """The device, if it is not the CPU."""
    is_kept: bool = field(default=False, compare=False)
    """Whether `save` follows the compile: an engine can share work between the two."""
    is_shared: bool = field(default=False, compare=False)
    """Whether several processes will load the saved file. An engine may then store data that each would otherwise compute, such
    as packed weights, for `load` to map."""

    def in_full_precision(self) -> CompileContext:
        """The context for an engine without lower precisions. Unchanged with strict types, which do not allow float32 instead."""
        if self.options.strict_types or self.options.precision == "fp32":
            return self
        return replace(self, options=replace(self.options, precision="fp32"))
