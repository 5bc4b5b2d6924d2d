"""Options of a compile and of a run that are common to all engines, and the context that an engine compiles in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from xrt.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator

__all__ = [
    "LOWER_PRECISIONS",
    "CompileContext",
    "ExecutionOptions",
    "Precision",
    "RunOptions",
    "check_options",
    "keyword",
]

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
LOWER_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "int8")


def keyword(default: Any, *, accepts: str = "", at_least: int | None = None, above: float | None = None) -> Any:
    """Declare an option: its default, and the values that it accepts.

    ``accepts`` is the type for editors where a caller may pass more than the field stores. A number with ``at_least`` is an
    integer, one with ``above`` is any number. `check_options` checks the range, and the flags of a dataclass.
    """
    return field(default=default, metadata={"accepts": accepts, "at_least": at_least, "above": above})


def check_options(options: Any) -> None:
    """Raise OptionError for a number outside its range or a flag that is neither True nor False."""
    for one in fields(options):
        value = getattr(options, one.name)
        at_least, above = one.metadata.get("at_least"), one.metadata.get("above")
        # bool is a subclass of int.
        if one.type == "bool":
            is_valid, expected = isinstance(value, bool), "True or False"
        elif at_least is not None:
            is_valid = isinstance(value, int) and not isinstance(value, bool) and value >= at_least
            expected = "a positive integer" if at_least == 1 else f"an integer of at least {at_least}"
        elif above is not None:
            is_valid = isinstance(value, int | float) and not isinstance(value, bool) and value > above
            expected = "a positive number" if above == 0 else f"a number above {above}"
        else:
            continue
        if not is_valid and (value is not None or one.default is not None):
            raise OptionError(f"{one.name} must be {expected}{' or None' * (one.default is None)}; got {value!r}")


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Options of a compile; part of the signature. An engine declines those that it does not implement."""

    precision: Precision = keyword("fp32", accepts="Precision | str | Sequence[str]")
    """Precision of the arithmetic. ``fp32`` computes in the types of the model; ``bf16`` and ``fp16`` allow an engine to compute
    float32 in that type; ``int8`` quantizes by the ranges of ``calibrate``. ``"Softmax=fp32"`` in a list keeps these nodes exact;
    with ``max_error`` the list has the precisions to try, ``int4`` for weights among them."""
    threads: int | None = keyword(None, at_least=1)
    """Thread budget of all engines together. None is the number of cores that the process may use."""

    def __post_init__(self) -> None:
        known = get_args(Precision)
        if self.precision not in known:
            raise OptionError(
                f"precision must be one of {', '.join(known)}; got {self.precision!r}.{did_you_mean(str(self.precision), known)}"
            )
        check_options(self)


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
        """The context for an engine without lower precisions."""
        if self.options.precision == "fp32":
            return self
        return replace(self, options=replace(self.options, precision="fp32"))
