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
"""The key of `option`'s argument ``names_files`` in the metadata of a field."""


def option(
    default: Any,
    *,
    names_files: bool | None = None,
    accepts: str = "",
    at_least: int | None = None,
    at_most: int | None = None,
    above: int | None = None,
) -> Any:
    """Declare an option of an engine or a module: a dataclass field with a default, and with the range of a number.

    ``names_files`` is whether a value may name a file, a folder or code; bundles and lockfiles cannot set such an option. By
    default, text may, and numbers, booleans and `Literal` may not. ``accepts`` is the annotation for editors if callers may pass
    other types than the field stores. The docstring below the field describes the option; the command line shows its first
    sentence.
    """
    metadata = {"accepts": accepts, "at_least": at_least, "at_most": at_most, "above": above}
    # Without the key, the type of the field decides.
    if names_files is not None:
        metadata[NAMES_FILES] = names_files
    return field(default=default, metadata=metadata)


def check_options(options: Any) -> None:
    """Raise OptionError for a number out of range, a flag that is not a bool, or, in an engine, a value not in its `Literal`."""
    is_engine = hasattr(options, "why_not")
    owner = f" of engine {options.name!r}" if is_engine else ""
    for declared in fields(options):
        value = getattr(options, declared.name)
        reason = _why_not_number(declared, value)
        if not reason and is_engine:
            reason = _why_not_literal(options, declared.name, value)
        if reason:
            raise OptionError(f"{declared.name}{owner} must be {reason}")


def _why_not_number(declared: Field[Any], value: Any) -> str:
    """Describe the range of a number or flag and the invalid value, or return an empty string if the value is valid."""
    at_least, at_most, above = (declared.metadata.get(bound) for bound in ("at_least", "at_most", "above"))
    # The annotation is a string, or a class in a module without postponed annotations.
    annotation = str(getattr(declared.type, "__name__", declared.type))
    if annotation == "bool":
        return "" if isinstance(value, bool) else f"True or False; got {value!r}"
    has_range = at_least is not None or above is not None
    allows_none = declared.default is None
    if not has_range or (value is None and allows_none):
        return ""
    is_float = "float" in annotation
    # bool is a subclass of int.
    is_number = isinstance(value, (int, float) if is_float else int) and not isinstance(value, bool)
    if is_number:
        is_high_enough = value > above if above is not None else value >= at_least
        if is_high_enough and (at_most is None or value <= at_most):
            return ""
    label = "a number" if is_float else "an integer"
    is_positive = above == 0 or (at_least == 1 and not is_float)
    if at_most is not None:
        expected = f"{label} from {at_least} to {at_most}"
    elif is_positive:
        expected = "a positive number" if is_float else "a positive integer"
    else:
        expected = f"{label} of at least {at_least}"
    return f"{expected}{' or None' if allows_none else ''}; got {value!r}"


def _why_not_literal(options: Any, name: str, value: Any) -> str:
    """Describe the allowed values of a `Literal` and the invalid value, or return an empty string, also for other types."""
    # Imported here, because spec imports this module through graph_compiler.
    from xrt.engines.contract.spec import field_types

    cls: Any = type(options)
    type_hint = field_types(cls).get(name)
    literals = get_args(type_hint)
    if get_origin(type_hint) is not Literal or value in literals:
        return ""
    return f"one of {', '.join(map(str, literals))}; got {value!r}.{did_you_mean(str(value), literals)}"


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Options of a compile, which are part of the cache key. An engine declines values in `unsupported_options`."""

    precision: Precision = option("fp32", accepts="Precision | str | Sequence[str]")
    """Precision of the arithmetic: fp32, fp16, bf16 or int8; with ``max_error`` several: bf16,int8,Softmax=fp32. With ``fp32``
    engines compute in the types of the model. With ``bf16`` or ``fp16`` they may compute float32 in that type. ``int8`` quantizes
    the model with the value ranges of ``calibrate``. ``"Softmax=fp32"``, together with int8 or ``max_error``, keeps Softmax in
    float32."""
    threads: int | None = option(None, at_least=1)
    """Number of threads for all engines together. None is the number of cores that the process may use."""

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
    """For each output a C-contiguous buffer of the same type and shape, or None for a new array. None: new arrays for all."""
    stream: Any = None
    """CUDA stream to run on: CuPy's, PyTorch's or an address; None for the stream of the module. Must be None on the CPU."""
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
    """The settings of a compile, and the resources that the engine may use for it."""

    options: ExecutionOptions = ExecutionOptions()
    device: str = "cpu"
    threads: int = 1
    """Maximum number of threads of a run."""
    workdir: Path | None = None
    """The directory that the engine may write to while it compiles; None if it must not write files."""
    accelerator: Accelerator | None = None
    """The device; None for the CPU."""
    is_kept: bool = field(default=False, compare=False)
    """Whether XRT will call `save` after the compile, so that the engine can share work between them."""
    is_shared: bool = field(default=False, compare=False)
    """Whether several processes will load the saved file. The engine may then store more data, such as packed weights, which
    `load` maps into memory, so that the processes share it."""

    def in_full_precision(self) -> CompileContext:
        """Copy the context with ``precision="fp32"``, for an engine that does not support the reduced precision."""
        if self.options.precision == "fp32":
            return self
        return replace(self, options=replace(self.options, precision="fp32"))
