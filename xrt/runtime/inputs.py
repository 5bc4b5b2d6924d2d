"""Bind, convert and check the inputs and output buffers of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from xrt.errors import DeviceError, InputError, ModelError, did_you_mean
from xrt.graph import DType, MapType, OptionalType, SequenceType, TensorType, Type, Value
from xrt.graph.device_names import normalize_device
from xrt.runtime.devices.registry import device, find_array_device, from_dlpack, is_on_host

Dims = dict[str, tuple[int, str]]
"""For each symbolic dim, its size and the name of the first input that has it."""


def bind(inputs: Sequence[Value], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Sort the arguments of a call in the order of ``inputs``. Raises InputError if one is missing, unknown or passed twice."""
    names = [value.name for value in inputs]
    # A single dict has the inputs by name, as for ONNX Runtime's ``run``, unless it may be the value of a map input.
    feed = args[0] if len(args) == 1 and not kwargs and type(args[0]) is dict else {}
    if feed and all(isinstance(name, str) for name in feed) and not (inputs and isinstance(inputs[0].type, MapType)):
        args, kwargs = [], feed
    takes = f"the model takes {len(names)} input{'' if len(names) == 1 else 's'} ({', '.join(names) or 'none'})"
    if len(args) > len(names):
        raise InputError(f"{takes}; got {len(args)} positional values")
    by_name = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise InputError(f"the model has no input {name[:200]!r}.{did_you_mean(name[:200], names)} {takes.capitalize()}")
        if name in by_name:
            raise InputError(f"input {name!r} is passed twice, by position and by name")
        by_name[name] = value
    missing = [value.name for value in inputs if value.name not in by_name and not isinstance(value.type, OptionalType)]
    if missing:
        raise InputError(f"no value for input{'' if len(missing) == 1 else 's'} {', '.join(map(repr, missing))}; {takes}")
    return [by_name.get(name) for name in names]


def read(inputs: Sequence[Value], args: Sequence[Any], kwargs: Mapping[str, Any], module_device: str = "cpu") -> list[Any]:
    """Sort (`bind`), convert (`normalize`) and check (`check`) the arguments of a call."""
    values = [
        normalize(value, argument, module_device) for value, argument in zip(inputs, bind(inputs, args, kwargs), strict=True)
    ]
    check(inputs, values)
    return values


def normalize(value: Value, argument: Any, module_device: str = "cpu") -> Any:
    """Convert a value to the form that engines expect: a NumPy array in native byte order, a list, a dict or None.

    Arrays of other libraries are imported through DLPack without a copy. They must be in host memory or on the module's device,
    where they stay; an array on another device raises DeviceError. Python scalars are accepted for 0-d inputs only. Raises
    InputError for other values.
    """
    type_ = value.type
    if isinstance(type_, OptionalType):
        return None if argument is None else normalize(Value(value.name, type_.element), argument, module_device)
    if isinstance(type_, SequenceType):
        if not isinstance(argument, list | tuple):
            raise InputError(f"input {value.name!r} is a sequence ({type_}); pass a list of arrays, not {_describe(argument)}")
        return [normalize(Value(f"{value.name}[{i}]", type_.element), item, module_device) for i, item in enumerate(argument)]
    if isinstance(type_, MapType):
        if not isinstance(argument, Mapping):
            raise InputError(f"input {value.name!r} is {type_}; pass a dict, not {_describe(argument)}")
        item_dtype = type_.value.dtype if isinstance(type_.value, TensorType) else None
        to_scalar = partial(_to_scalar, value.name, type_)
        return {to_scalar(type_.key, key): to_scalar(item_dtype, item) for key, item in argument.items()}
    return _to_array(value.name, type_, argument, module_device)


def _to_scalar(name: str, type_: MapType, dtype: DType | None, argument: Any) -> Any:
    """Convert a key or value of a map to a Python scalar of type ``dtype``; None accepts any type."""
    is_numpy_scalar = isinstance(argument, np.generic) or (isinstance(argument, np.ndarray) and argument.ndim == 0)
    scalar = argument.item() if is_numpy_scalar else argument
    if dtype is None:
        return scalar
    accepted: Any = str if dtype is DType.STRING else int
    if dtype.is_float:
        accepted = int | float
    # bool is a subclass of int.
    if not isinstance(scalar, accepted) or isinstance(scalar, bool):
        raise InputError(f"input {name!r} is {type_}; it holds {argument!r}, which is not of type {dtype}")
    return float(scalar) if dtype.is_float else scalar


def _to_array(name: str, type_: TensorType | None, argument: Any, module_device: str) -> Any:
    if type(argument) is np.ndarray or isinstance(argument, np.ndarray | np.generic):
        array = np.asarray(argument)
    elif isinstance(argument, bool | int | float | complex | str):
        array = _to_scalar_array(name, type_, argument)
    elif not hasattr(argument, "__dlpack__"):
        raise InputError(
            f"input {name!r} must be a NumPy array; got {_describe(argument)}; convert it with np.asarray(..., dtype=...)"
        )
    elif not is_on_host(argument):
        if (device_name := find_array_device(argument)) != normalize_device(module_device):
            described = _describe(argument)
            raise DeviceError(
                f"input {name!r} ({described}) is on {device_name}, and the module runs on {module_device}; copy it there"
            )
        accelerator = device(module_device)
        return argument if accelerator.owns(argument) else accelerator.adopt(argument)
    else:
        try:
            array = from_dlpack(argument)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"input {name!r} ({_describe(argument)}) cannot be read through DLPack: {error}") from error
    # Engines expect strings as Python objects.
    if array.dtype.kind in "US":
        return array.astype(object)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
        array.flags.writeable = False  # the caller would not see an update that is written to the copy
    return array


def _to_scalar_array(name: str, type_: TensorType | None, argument: Any) -> np.ndarray[Any, Any]:
    if type_ is None or type_.shape != ():
        declared = f" ({type_})" if type_ is not None else ""
        raise InputError(
            f"input {name!r}{declared} must be a NumPy array; only a 0-d input accepts a Python {type(argument).__name__}"
        )
    array = np.asarray(argument, dtype=object if isinstance(argument, str) else None)
    if type_.dtype is DType.STRING or not np.can_cast(array.dtype, type_.dtype.numpy, "same_kind"):
        return array
    # A number that is too large for the type is an error. Without this, NumPy would convert it to infinity.
    with np.errstate(over="raise"):
        try:
            return np.asarray(argument, dtype=type_.dtype.numpy)
        except (OverflowError, FloatingPointError):
            raise InputError(f"input {name!r} is {type_}, which cannot hold {argument!r}") from None


def _describe(argument: Any) -> str:
    kind = type(argument)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def check(inputs: Sequence[Value], values: Sequence[Any]) -> None:
    """Raise InputError if a value does not have its declared type, or if inputs disagree on the size of a symbolic dim."""
    dims: Dims = {}
    for value, argument in zip(inputs, values, strict=True):
        _check(value.name, value.type, argument, dims)


def _check(name: str, type_: Type | None, argument: Any, dims: Dims) -> None:
    if isinstance(type_, SequenceType):
        for index, item in enumerate(argument):
            _check(f"{name}[{index}]", type_.element, item, {})  # with new dims, because elements may differ in shape
    elif isinstance(type_, OptionalType) and argument is not None:
        _check(name, type_.element, argument, dims)
    elif isinstance(type_, TensorType):
        _check_element_type(name, type_, argument)
        if type_.shape is not None:
            _check_shape(name, type_, type_.shape, argument.shape, dims)


def _check_element_type(name: str, type_: TensorType, array: np.ndarray[Any, Any]) -> None:
    try:
        dtype = DType.from_array(array)
    except ModelError as error:
        raise InputError(f"input {name!r} must be {type_}; {error}") from None
    if dtype is not type_.dtype:
        kind = str(dtype)
        # Object arrays are read as strings; report the actual element type.
        if dtype is DType.STRING and array.size and not isinstance(array.flat[0], str):
            kind = f"dtype object, whose first element is {type(array.flat[0]).__name__}"
        raise InputError(f"input {name!r} must be {type_.dtype}; got {kind}; convert it with .astype({str(type_.dtype.numpy)!r})")
    for index, item in enumerate(array.flat if dtype is DType.STRING else ()):
        if not isinstance(item, str):
            raise InputError(
                f"input {name!r} must hold text; element {index} is {type(item).__name__} {item!r}: make each element a str"
            )


def _check_shape(name: str, type_: TensorType, declared: Sequence[Any], shape: tuple[int, ...], dims: Dims) -> None:
    if len(declared) != len(shape):
        raise InputError(f"input {name!r} must have rank {len(declared)} ({type_}); got rank {len(shape)}, shape {list(shape)}")
    for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise InputError(f"input {name!r} must be {type_}; got shape {list(shape)}: axis {axis} is {size}, not {dim}")
        if isinstance(dim, str):
            seen, where = dims.setdefault(dim, (size, name))
            if seen != size:
                raise InputError(f"dimension {dim!r} is {seen} in input {where!r} and {size} in input {name!r}; pass equal sizes")


def copy_values(value: Any) -> Any:
    """Copy a value with all its arrays; it may be an array, a list of arrays, a dict or None."""
    if isinstance(value, list):
        return [copy_values(item) for item in value]
    return value.copy() if hasattr(value, "dtype") or isinstance(value, dict) else value


def check_updated(name: str, array: Any) -> None:
    """Raise InputError if an input that the model updates is read-only, by the caller or by `normalize` (see `_to_array`)."""
    if not array.flags.writeable:
        raise InputError(
            f"input {name!r} cannot be written to, and the model updates it; give a writeable array of native byte order"
        )


def check_buffers(
    out: Any, outputs: Sequence[Value], inputs: Sequence[Value], values: Sequence[Any], module_device: str = "cpu"
) -> tuple[Any, ...]:
    """Check the output buffers ``out``; return one buffer or None per output.

    A buffer is a writeable, C-contiguous array of the output's type and shape on the module's device, and overlaps no input and
    no other buffer. Otherwise raises InputError, or DeviceError for a buffer on another device. Arrays of other libraries on an
    accelerator are imported. A symbolic dim has its size in the inputs; one that no input has is checked after the call.
    """
    buffers = tuple(out) if isinstance(out, list | tuple) else (out,)
    if len(buffers) != len(outputs):
        buffer_count = "1 buffer" if len(buffers) == 1 else f"{len(buffers)} buffers"
        output_count = "1 output" if len(outputs) == 1 else f"{len(outputs)} outputs"
        names = ", ".join(value.name for value in outputs)
        raise InputError(f"out has {buffer_count}; the model has {output_count} ({names}): give one, or None, for each")
    seen = [(f"input {declared.name!r}", value) for declared, value in zip(inputs, values, strict=False)]
    sizes: dict[Any, int] = {}
    for declared, value in zip(inputs, values, strict=False):
        if isinstance(declared.type, TensorType):
            sizes.update(zip(declared.type.shape or (), value.shape, strict=False))
    checked = []
    for index, (buffer, value) in enumerate(zip(buffers, outputs, strict=True)):
        label = f"out[{index}] for output {value.name!r}"
        array = None if buffer is None else _read_buffer(buffer, label, module_device)
        if array is not None:
            overlapping = next((name for name, other in seen if _shares_memory(buffer, other)), None)
            reason = _why_not_writable(array, value.type, sizes)
            if reason is None and overlapping is not None:
                reason = f"overlaps {overlapping}; pass a buffer with separate memory"
            if reason is not None:
                raise InputError(f"{label} {reason}")
        seen.append((f"out[{index}]", buffer))
        checked.append(array)
    return tuple(checked)


def _read_buffer(buffer: Any, label: str, module_device: str) -> Any:
    """Convert a buffer to an array of the module's device; raises DeviceError if it is on another device."""
    if module_device == "cpu":
        if not isinstance(buffer, np.ndarray) and hasattr(buffer, "__dlpack_device__") and not is_on_host(buffer):
            raise DeviceError(f"{label} is on {find_array_device(buffer)}, and the module runs on cpu; pass a NumPy array")
        return buffer
    accelerator = device(module_device)
    if accelerator.owns(buffer):
        return buffer
    if not hasattr(buffer, "__dlpack__") or is_on_host(buffer):
        raise DeviceError(f"{label} is not on {accelerator.name}, where the module runs; pass an array of that device")
    return accelerator.adopt(buffer)


def _why_not_writable(buffer: Any, type_: Type | None, sizes: Mapping[Any, int]) -> str | None:
    """Explain why an output of this type cannot be written to the buffer, as a phrase that follows its name; None if it can."""
    if isinstance(buffer, np.ndarray):
        flags = buffer.flags  # a host array; arrays of devices, below, have fewer flags
        fault = ""
        if not flags.writeable:
            fault = "read-only"
        elif not flags.c_contiguous:
            fault = "not C-contiguous"
        elif not flags.aligned:
            fault = "not aligned to its element type"
        if fault:
            return f"is {fault}; a buffer must be a writeable, C-contiguous array"
    elif not (hasattr(buffer, "flags") and hasattr(buffer, "dtype")):
        return f"must be a NumPy array; got {type(buffer).__name__}"
    elif not buffer.flags.c_contiguous:
        return "is not C-contiguous; a buffer must be a C-contiguous array"
    if type_ is None:
        return None
    if not isinstance(type_, TensorType):
        return f"must be None: the output is {type_}, which cannot be written to an array"
    if type_.shape is not None:
        type_ = type_.with_shape(tuple(dim if dim is None else sizes.get(dim, dim) for dim in type_.shape))
    declared = buffer.shape if type_.shape is None else type_.shape
    fits = len(declared) == buffer.ndim
    # A symbolic dim that no input has is compared with the result, after the call.
    fits = fits and all(dim == size or not isinstance(dim, int) for dim, size in zip(declared, buffer.shape, strict=True))
    if buffer.dtype != type_.dtype.numpy or not fits:
        return f"must be {type_}; got {buffer.dtype}{list(buffer.shape)}"
    return None


def _shares_memory(buffer: Any, other: Any) -> bool:
    if isinstance(other, list):
        return any(_shares_memory(buffer, item) for item in other)
    if buffer is other or not (isinstance(buffer, np.ndarray) and isinstance(other, np.ndarray)):
        return buffer is other
    return np.may_share_memory(buffer, other) and np.shares_memory(buffer, other)
