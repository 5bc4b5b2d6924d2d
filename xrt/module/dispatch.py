"""A call that was prepared: a check of type, element type and shape per input, and the launch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from xrt.errors import RunFailed
from xrt.module.fallback import Call
from xrt.runtime import Program, to_run_failed

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.module.module import XRTModule
    from xrt.module.specialization import Specialization

__all__ = [
    "NOTHING",
    "NO_MATCH",
    "FastPath",
    "make_fast_path",
    "make_named_call",
    "make_signature_check",
    "make_signature_key",
    "retry_on_failure",
    "unpack_outputs",
]

NO_MATCH: Final = object()
"""What a prepared call returns for inputs of another signature."""

FastCall: TypeAlias = Callable[[tuple[Any, ...]], Any]
Rescue: TypeAlias = Callable[[tuple[Any, ...], Exception], Any]
"""Takes the inputs of a call and what it has raised; returns what the call returns after all, or raises."""


def reject_inputs(_: object) -> object:
    """Serve no inputs at all."""
    return NO_MATCH


def reject_match(_: object) -> bool:
    """Whether inputs are served where nothing is prepared."""
    return False


@dataclass(frozen=True, slots=True)
class FastPath:
    """One signature's call; both ways return `NO_MATCH` for inputs that do not fit."""

    positional: FastCall = reject_inputs
    named: Callable[[Mapping[str, Any]], Any] = reject_inputs
    fits: Callable[[tuple[Any, ...]], bool] = reject_match
    build: Specialization | None = None
    """What it is a call of; None where nothing is prepared."""
    program: Program | None = None
    """What it runs."""


NOTHING: Final = FastPath()
"""Serves no inputs."""


def make_fast_path(build: Specialization, program: Program, values: Sequence[Any], rescue: Rescue) -> FastPath:
    """Return the build's call for inputs like these arrays; ``rescue`` is called where the program raises."""
    expected = tuple((type(value), value.dtype, value.shape) for value in values)
    fits = make_signature_check(expected)
    texts = [place for place, value in enumerate(values) if value.dtype.hasobject]
    if texts:
        fits = _holding_texts(fits, texts)
    one = len(expected) == 1 and not texts
    positional = _from_one(program, *expected[0], rescue) if one else _from_many(program, fits, rescue)
    named = make_named_call([value.name for value in build.function.inputs], positional)
    return FastPath(positional, named, fits, build, program)


def make_signature_check(expected: tuple[tuple[Any, Any, Any], ...]) -> Callable[[tuple[Any, ...]], bool]:
    """Return what says whether inputs have those types, element types and shapes."""
    count = len(expected)

    def fits(args: tuple[Any, ...]) -> bool:
        if len(args) != count:
            return False
        for value, (kind, dtype, shape) in zip(args, expected, strict=True):
            if type(value) is not kind or value.dtype is not dtype or value.shape != shape:
                return False
        return True

    return fits


def _holding_texts(fits: Callable[[tuple[Any, ...]], bool], places: Sequence[int]) -> Callable[[tuple[Any, ...]], bool]:
    """Check the elements of arrays of objects too: their type does not say that all are texts."""
    return lambda args: fits(args) and all(type(text) is str for place in places for text in args[place].flat)


def _from_one(program: Program, kind: Any, dtype: Any, shape: Any, rescue: Rescue) -> FastCall:
    """Return the fast path for one input. It is written out because this case is common and each line adds to a call's time."""
    run, finish = _run_of(program), unpack_outputs(program.plan.function)

    def call(args: tuple[Any, ...]) -> Any:
        if len(args) == 1:
            (value,) = args
            if type(value) is kind and value.dtype is dtype and value.shape == shape:
                try:
                    return finish(run(value))
                except Exception as error:  # noqa: BLE001  # the rescue says what to make of it
                    return rescue(args, error)
        return NO_MATCH

    return call


def _from_many(program: Program, fits: Callable[[tuple[Any, ...]], bool], rescue: Rescue) -> FastCall:
    run, finish = _run_of(program), unpack_outputs(program.plan.function)

    def call(args: tuple[Any, ...]) -> Any:
        if fits(args):
            try:
                return finish(run(*args))
            except Exception as error:  # noqa: BLE001  # the rescue says what to make of it
                return rescue(args, error)
        return NO_MATCH

    return call


def _run_of(program: Program) -> Callable[..., Sequence[Any]]:
    """Return the engine's own call where the program is one region; a program of several raises XRT's errors by itself."""
    return program.fast_call or (lambda *args: program.run(args))


def unpack_outputs(function: Function) -> Callable[[Sequence[Any]], Any]:
    """Return what makes results into what a call returns: one output as it is, several as a tuple."""
    return itemgetter(0) if len(function.outputs) == 1 else tuple


def make_named_call(names: Sequence[str], positional: FastCall) -> Callable[[Mapping[str, Any]], Any]:
    """Return the call with inputs by their names."""
    pick = itemgetter(*names) if len(names) > 1 else lambda named: tuple(named[name] for name in names)
    count = len(names)

    def call(named: Mapping[str, Any]) -> Any:
        if len(named) != count:
            return NO_MATCH
        try:
            return positional(pick(named))
        except KeyError:
            return NO_MATCH

    return call


def make_signature_key(values: Sequence[Any]) -> object:
    """Return what tells signatures apart; None where there is a value that is no array."""
    if any(type(value) is not np.ndarray for value in values):
        if any(not hasattr(value, "dtype") or not hasattr(value, "shape") for value in values):
            return None
        return tuple([(type(value), value.dtype, value.shape) for value in values])
    return tuple([(value.dtype, value.shape) for value in values])


def retry_on_failure(
    module: weakref.ref[XRTModule], build: Specialization, program: Program, args: tuple[Any, ...], error: Exception
) -> Any:
    """Return what a prepared call that has raised gives after all; it is not what keeps its module alive."""
    launches, owner = program.plan.launches, module()
    failed = to_run_failed(launches[0], error) if len(launches) == 1 else error
    if owner is None or not isinstance(failed, RunFailed):
        raise failed
    results = build.rescue(program, failed, Call(args))
    owner._forget_calls()
    return unpack_outputs(build.function)(results)
