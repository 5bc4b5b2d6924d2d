"""The self-test of a bundle: an example with the outputs that were computed of it, and the comparison when it is run again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.comparison import compare, tolerance_for
from xrt.errors import OptionError, SelfTestFailed, XRTError
from xrt.formats.example import Example, decode_example, is_encodable
from xrt.graph import is_deterministic
from xrt.graph.sample_inputs import sample_inputs

if TYPE_CHECKING:
    from xrt.formats.bundle import BundleFile
    from xrt.graph import Function

__all__ = ["MOST_BYTES", "SECTION", "SelfTestReport", "draw_inputs", "make_example", "read_example", "run_example"]

SECTION = "self-test"
MOST_BYTES = 16 << 20
"""Bytes of inputs and outputs that a bundle keeps at most as its example."""


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """A self-test that passed. Prints as a line."""

    difference: float
    """The largest difference between an output and the one that was saved."""
    seconds: float
    """What the call and the comparison took, the compile or load of its programs included."""

    def __str__(self) -> str:
        return f"self-test passed in {self.seconds:.3f} s; largest difference {self.difference:.3g}"


def make_example(function: Function, run: Callable[[Sequence[Any]], Sequence[Any]], given: Sequence[Any] | None) -> Example:
    """Return an example with the outputs that ``run`` computes: of the given inputs, else of random ones.

    Raises OptionError where an input or output is no tensor of numbers, they are large, or without given inputs the outputs of a
    further call may be others; InputError where random ones cannot be made.
    """
    values = draw_inputs(function) if given is None else given
    if not all(map(is_encodable, values)):
        raise _why_not("an input is no tensor of numbers")
    inputs = tuple((value.name, np.array(one)) for value, one in zip(function.inputs, values, strict=True))
    outputs = run([array.copy() for _, array in inputs])
    if not all(map(is_encodable, outputs)):
        raise _why_not("an output is no tensor of numbers")
    example = Example(inputs, tuple((value.name, one) for value, one in zip(function.outputs, outputs, strict=True)))
    _check_size(example.nbytes)
    return example


def draw_inputs(function: Function) -> list[Any]:
    """Return random inputs; raises OptionError and InputError as `make_example` does."""
    if not all(is_deterministic(node, function) for node in function.nodes):
        raise _why_not("the same inputs may give other outputs")
    values = list(sample_inputs(function).values())
    _check_size(sum(getattr(value, "nbytes", 0) for value in values))
    return values


def _check_size(nbytes: int) -> None:
    if nbytes > MOST_BYTES:
        most = f"a bundle keeps at most {MOST_BYTES}; give a smaller one"
        raise _why_not(f"it has {nbytes} bytes of inputs and outputs, and {most}")


def _why_not(reason: str) -> OptionError:
    return OptionError(f"the example cannot be kept: {reason}, or pass example=False for none")


def read_example(file: BundleFile) -> Example | None:
    """Return the example of a bundle; None where it has none. Raises BundleError where it is damaged."""
    data = file.find_section(SECTION)
    return None if data is None else decode_example(data)


def run_example(file: BundleFile, call: Callable[[Sequence[Any]], Sequence[Any]]) -> SelfTestReport | None:
    """Check the file, compute its example and compare; None where it has none. Raises SelfTestFailed."""
    began, name = perf_counter(), os.fspath(file.path)
    try:
        file.check()
        example = read_example(file)
        if example is None:
            return None
        results = call([np.array(array) for _, array in example.inputs])
    except XRTError as error:
        raise SelfTestFailed(f"the self-test of {name!r} failed: {error}") from error
    differences = [0.0]
    for (output, expected), found in zip(example.outputs, results, strict=True):
        comparison = compare(found, expected, tolerance_for(expected.dtype, "network"), name=output)
        if not comparison:
            hint = f"save the bundle again where its results are right, or find what differs with `xrt verify {name}`"
            raise SelfTestFailed(f"the self-test of {name!r} failed: {comparison.message}; {hint}", comparison.absolute)
        differences.append(comparison.absolute)
    return SelfTestReport(max(differences), perf_counter() - began)
