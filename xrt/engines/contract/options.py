"""Options of a compile and of a run that are common to all engines, and the context that an engine compiles in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin

from xrt.errors import DeviceError, OptionError, did_you_mean

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator


Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
REDUCED_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "int8")


NAMES_FILES = "names_files"
"""Key in a field's metadata: whether a value may name a file, a folder or code."""


def option(
    default: Any,
    *,
    names_files: bool | None = None,
    accepts: str = "",
    at_least: int | None = None,
    at_most: int | None = None,
    above: int | None = None,
) -> Any:
    """Declare an option of an engine or a module: its default, the range of a number, and the values that it accepts.

    A bundle or a lockfile may set an option only if it names no file, folder or code. Without ``names_files``, free text counts
    as naming files; numbers, booleans and `Literal` do not. ``accepts`` is the type for editors where a caller may pass more than
    the field stores. The docstring below the field is its description; its first sentence is the help of the command line.
    """
    metadata = {"accepts": accepts, "at_least": at_least, "at_most": at_most, "above": above}
    return field(default=default, metadata=metadata if names_files is None else {**metadata, NAMES_FILES: names_files})


def check_options(options: Any) -> None:
    """Validate an options dataclass. Raises OptionError for a number out of range, or a flag that is not a bool.

    For an engine, also raises it for a value that is not in the `Literal` type of its field.
    """
    is_engine = hasattr(options, "why_not")
    for declared in fields(options):
        value = getattr(options, declared.name)
        if reason := _why_not_number(declared, value) or (_why_not_literal(options, declared.name, value) if is_engine else ""):
            owner = f" of engine {options.name!r}" if is_engine else ""
            raise OptionError(f"{declared.name}{owner} must be {reason}")


def _why_not_number(declared: Field[Any], value: Any) -> str:
    """Describe the range of a number or flag and the invalid value, or return an empty string if the value is valid."""
    at_least, at_most, above = (declared.metadata.get(bound) for bound in ("at_least", "at_most", "above"))
    kind = str(getattr(declared.type, "__name__", declared.type))  # a class where annotations are not postponed
    if kind == "bool":
        return "" if isinstance(value, bool) else f"True or False; got {value!r}"
    if (at_least is None and above is None) or (value is None and declared.default is None):
        return ""
    number_types, label = ((int, float), "a number") if "float" in kind else ((int,), "an integer")
    # bool is a subclass of int.
    is_number = isinstance(value, number_types) and not isinstance(value, bool)
    if is_number and (value > above if above is not None else value >= at_least) and (at_most is None or value <= at_most):
        return ""
    if at_most is not None:
        expected = f"{label} from {at_least} to {at_most}"
    elif above == 0 or (at_least == 1 and label == "an integer"):
        expected = f"a positive {label.split()[1]}"
    else:
        expected = f"{label} of at least {at_least}"
    return f"{expected}{' or None' * (declared.default is None)}; got {value!r}"


def _why_not_literal(engine: Any, name: str, value: Any) -> str:
    # Imported here, because spec imports this module through graph_compiler.
    from xrt.engines.contract.spec import field_types

    kind: Any = type(engine)
    type_hint = field_types(kind).get(name)
    literals = get_args(type_hint) if get_origin(type_hint) is Literal else (value,)
    if value in literals:
        return ""
    return f"one of {', '.join(map(str, literals))}; got {value!r}.{did_you_mean(str(value), literals)}"


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Options of a compile; part of the signature. An engine declines those that it does not implement."""

    precision: Precision = option("fp32", accepts="Precision | str | Sequence[str]")
    """Precision of the arithmetic: fp32, fp16, bf16 or int8; with ``max_error`` several: bf16,int8,Softmax=fp32. ``fp32``
    computes in the types of the model, ``bf16`` and ``fp16`` allow an engine to compute float32 in that type, ``int8`` quantizes
    by the ranges of ``calibrate``. Beside int8 or with ``max_error``, ``"Softmax=fp32"`` keeps Softmax in float32."""
    threads: int | None = option(None, at_least=1)
    """Thread budget of all engines together. None is the number of cores that the process may use."""

    def __post_init__(self) -> None:
        names = get_args(Precision)
        if self.precision not in names:
            raise OptionError(
                f"precision must be one of {', '.join(names)}; got {self.precision!r}.{did_you_mean(str(self.precision), names)}"
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

    @property
    def host_buffers(self) -> Sequence[Any] | None:
        """``out`` for a run on the CPU; raises DeviceError for a stream, because the CPU has none."""
        if self.stream is not None:
            raise DeviceError("a stream was passed for a run on the CPU, which has no streams; pass stream=None")
        return self.out


@dataclass(frozen=True, slots=True)
class CompileContext:
    """The settings and resources of one compile."""

    options: ExecutionOptions = ExecutionOptions()
    device: str = "cpu"
    threads: int = 1
    """Thread budget of the executable while it runs."""
    workdir: Path | None = None
    """The only directory that the engine may write to while it compiles. None: it must not write files."""
    accelerator: Accelerator | None = None
    """The device, if it is not the CPU."""
    is_kept: bool = field(default=False, compare=False)
    """Whether `save` follows the compile: an engine can share work between the two."""
    is_shared: bool = field(default=False, compare=False)
    """Whether several processes will load the saved file. An engine may then store data that each would otherwise compute, such
    as packed weights, for `load` to map."""

    def in_full_precision(self) -> CompileContext:
        """Copy the context with ``precision="fp32"``, for an engine that does not implement the reduced precision."""
        if self.options.precision == "fp32":
            return self
        return replace(self, options=replace(self.options, precision="fp32"))
