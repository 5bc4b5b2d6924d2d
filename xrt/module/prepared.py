"""A call that was prepared: a check of type, element type and shape per input, and the launch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from xrt.errors import RunFailed
from xrt.graph import Function
from xrt.module.build import Build
from xrt.module.recovery import Call
from xrt.runtime import Program, failure

if TYPE_CHECKING:
    from xrt.module.module import XRTModule

__all__ = ["MISS", "Prepared", "key_of", "prepared", "rescued", "shaping"]

MISS: Final = object()
"""What a prepared call returns for inputs of another signature."""

Taking: TypeAlias = Callable[[tuple[Any, ...]], Any]
Rescue: TypeAlias = Callable[[tuple[Any, ...], Exception], Any]
"""Takes the inputs of a call and what it has raised; returns what the call returns after all, or raises."""


def never(_: object) -> object:
    """Serve no inputs at all."""
    return MISS


def never_fits(_: object) -> bool:
    """Whether inputs are served where nothing is prepared."""
    return False


@dataclass(frozen=True, slots=True)
class Prepared:
    """One signature's call; both ways return `MISS` for inputs that do not fit."""

    positional: Taking = never
    named: Callable[[Mapping[str, Any]], Any] = never
    fits: Callable[[tuple[Any, ...]], bool] = never_fits
    build: Build | None = None
    """What it is a call of; None where nothing is prepared."""
    program: Program | None = None
    """What it runs."""


def prepared(build: Build, program: Program, values: Sequence[Any], rescue: Rescue) -> Prepared:
    """Return the build's call for inputs like these arrays; ``rescue`` is called where the program raises."""
    expected = tuple((type(value), value.dtype, value.shape) for value in values)
    fits = _fitting(expected)
    positional = _from_one(program, *expected[0], rescue) if len(expected) == 1 else _from_many(program, fits, rescue)
    return Prepared(positional, _by_name([value.name for value in build.function.inputs], positional), fits, build, program)


def _fitting(expected: tuple[tuple[Any, Any, Any], ...]) -> Callable[[tuple[Any, ...]], bool]:
    count = len(expected)

    def fits(args: tuple[Any, ...]) -> bool:
        if len(args) != count:
            return False
        for value, (kind, dtype, shape) in zip(args, expected, strict=True):
            if type(value) is not kind or value.dtype is not dtype or value.shape != shape:
                return False
        return True

    return fits


def _from_one(program: Program, kind: Any, dtype: Any, shape: Any, rescue: Rescue) -> Taking:
    """Spelt out, for one input is the common case, and what stands here is what a call costs."""
    run, finish = _run_of(program), shaping(program.plan.function)

    def call(args: tuple[Any, ...]) -> Any:
        if len(args) == 1:
            (value,) = args
            if type(value) is kind and value.dtype is dtype and value.shape == shape:
                try:
                    return finish(run(value))
                except Exception as error:  # noqa: BLE001  # the rescue says what to make of it
                    return rescue(args, error)
        return MISS

    return call


def _from_many(program: Program, fits: Callable[[tuple[Any, ...]], bool], rescue: Rescue) -> Taking:
    run, finish = _run_of(program), shaping(program.plan.function)

    def call(args: tuple[Any, ...]) -> Any:
        if fits(args):
            try:
                return finish(run(*args))
            except Exception as error:  # noqa: BLE001  # the rescue says what to make of it
                return rescue(args, error)
        return MISS

    return call


def _run_of(program: Program) -> Callable[..., Sequence[Any]]:
    """Return the engine's own call where the program is one region; a program of several raises XRT's errors by itself."""
    return program.direct or (lambda *args: program.run(args))


def shaping(function: Function) -> Callable[[Sequence[Any]], Any]:
    """Return what makes results into what a call returns: one output as it is, several as a tuple."""
    return itemgetter(0) if len(function.outputs) == 1 else tuple


def _by_name(names: Sequence[str], positional: Taking) -> Callable[[Mapping[str, Any]], Any]:
    pick = itemgetter(*names) if len(names) > 1 else lambda named: tuple(named[name] for name in names)
    count = len(names)

    def call(named: Mapping[str, Any]) -> Any:
        if len(named) != count:
            return MISS
        try:
            return positional(pick(named))
        except KeyError:
            return MISS

    return call


def key_of(values: Sequence[Any]) -> object:
    """Return what tells signatures apart; None where there is a value that is no array."""
    if any(type(value) is not np.ndarray for value in values):
        if any(not hasattr(value, "dtype") or not hasattr(value, "shape") for value in values):
            return None
        return tuple([(type(value), value.dtype, value.shape) for value in values])
    return tuple([(value.dtype, value.shape) for value in values])


def rescued(module: weakref.ref[XRTModule], build: Build, program: Program, args: tuple[Any, ...], error: Exception) -> Any:
    """Return what a prepared call that has raised gives after all; it is not what keeps its module alive."""
    launches, owner = program.plan.launches, module()
    failed = failure(launches[0], error) if len(launches) == 1 else error
    if owner is None or not isinstance(failed, RunFailed):
        raise failed
    results = build.rescue(program, failed, Call(args))
    owner._forget_calls()
    return shaping(build.function)(results)
