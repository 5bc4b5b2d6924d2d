"""Graphs of which parameters and buffers are constants: compiled for the tensors of each call, which are compared first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from operator import is_, itemgetter
from typing import Any

import torch

from xrt.errors import FallbackWarning, warn
from xrt.forking import renewed

__all__ = ["FrozenGraph", "find_static_inputs"]

MOST_VARIANTS = 64
"""Sets of tensors that one graph is compiled for; with more of them it takes its parameters as inputs."""

Compiled = Callable[[list[Any]], Sequence[Any]]


def find_static_inputs(inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return the parameters, buffers and attributes of modules among the inputs of a graph of Dynamo's, by position.

    Dynamo guards neither which of these a graph gets nor what is written to them: one graph runs for all modules of a class.
    """
    return {
        index: one
        for index, one in enumerate(inputs)
        if type(one) in (torch.Tensor, torch.nn.Parameter)
        and (isinstance(one, torch.nn.Parameter) or getattr(one, "_dynamo_static_input_type", None) is not None)
        and not one.is_inference()
    }


class FrozenGraph:
    """Runs a graph that is compiled once for each set of tensors that are its constants, and once more after a write to one.

    ``compile`` takes these tensors by position. A write that PyTorch does not count (by NumPy, through ``.data``) is not seen.
    """

    _boxed_call = True
    """By this AOTAutograd knows that it takes a list."""

    def __init__(self, compile: Callable[[Mapping[int, torch.Tensor]], Compiled], tensors: Mapping[int, torch.Tensor]) -> None:  # noqa: A002  # as elsewhere
        self._compile = compile
        self._indices = tuple(tensors)
        self._guard = renewed(threading.Lock())
        self._pick = itemgetter(*self._indices) if len(tensors) > 1 else lambda args: (args[self._indices[0]],)
        self._variants: tuple[tuple[tuple[torch.Tensor, ...], list[int], Compiled], ...] = ()
        self._made = 0
        self._unfrozen: Compiled | None = None
        self._add(tuple(tensors.values()))

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        tensors = self._pick(args)
        versions = _get_versions(tensors)
        for known, when, run in self._variants:
            if when == versions and all(map(is_, known, tensors)):
                return run(args)
        with self._guard:
            run = self._unfrozen or self._add(tensors)
        return run(args)

    def _add(self, tensors: tuple[torch.Tensor, ...]) -> Compiled:
        if self._made == MOST_VARIANTS:
            warn(
                f"the parameters of a frozen graph of torch.compile were others, or were written to, {MOST_VARIANTS} times; "
                f"they are inputs from now on: leave out freeze=True",
                FallbackWarning,
            )
            self._variants, self._unfrozen = (), self._compile({})
            return self._unfrozen
        self._made += 1
        versions = _get_versions(tensors)
        run = self._compile(dict(zip(self._indices, tensors, strict=True)))
        others = (one for one in self._variants if not all(map(is_, one[0], tensors)))  # those of older versions are of no use
        self._variants = ((tensors, versions, run), *others)
        return run


def _get_versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    try:
        return [one._version for one in tensors]
    except RuntimeError:  # a tensor of inference mode has none
        return [-1 if one.is_inference() else one._version for one in tensors]
