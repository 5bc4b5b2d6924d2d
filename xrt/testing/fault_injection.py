"""Engines for tests: `RecordingEngine` counts its calls and can refuse regions, `FaultyEngine` fails in a configured way.

Both delegate to another engine, so that their results are right unless configured otherwise.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from xrt.engines import CompileContext, Executable, GraphCompiler, MemoryUse, RunOptions
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import CompileRefused, OptionError
from xrt.graph.device_names import parse_device_kind

if TYPE_CHECKING:
    from xrt.graph import Function, Node

__all__ = ["FaultyEngine", "How", "Journal", "ObservedExecutable", "RecordingEngine", "Where"]

Where: TypeAlias = Literal["why_not", "compile", "prepare", "run", "memory", "close", "version"]
How: TypeAlias = Literal[
    "raise", "refuse", "hang", "kill", "memory", "dtype", "shape", "nan", "value", "missing", "scalar", "write_input"
]

# These corrupt the results of `run`, so they are not possible in another method.
_RESULT_FAULTS: tuple[How, ...] = ("dtype", "shape", "nan", "value", "missing", "scalar", "write_input")
_METHODS_BY_FAULT: dict[How, tuple[Where, ...]] = {
    "raise": get_args(Where),
    "refuse": ("why_not", "compile"),
    **dict.fromkeys(("hang", "kill", "memory"), ("compile", "prepare", "run", "close")),
    **dict.fromkeys(_RESULT_FAULTS, ("run",)),
}


class Journal:
    """Counts an engine's calls by method, and stores the compiled Functions. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.compiled: list[Function] = []
        """The Functions that `compile` did not refuse, in order."""

    def note(self, method: str) -> int:
        with self._lock:
            self._counts[method] += 1
            return self._counts[method]

    def count(self, method: str) -> int:
        """Get the number of calls of a method so far. `RecordingEngine` does not count ``memory`` and ``version``."""
        return self._counts[method]

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()
            self.compiled.clear()


@dataclass(frozen=True)
class RecordingEngine(GraphCompiler):
    """An engine that counts its calls in `journal`, and delegates to another engine.

    It supports the operators in `takes`, and refuses to compile regions that contain a combination in `refuses`.
    """

    name: ClassVar[str] = "recording"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    """`why_not` declines nodes on those of these devices that the inner engine does not have."""

    inner: str = REFERENCE
    """The spec of the engine to delegate to."""
    takes: str = "*"
    """The supported operators, as globs separated by ``|``."""
    refuses: str = ""
    """Alternatives separated by ``|``, each with operators joined by ``+``: a region that contains all operators of an
    alternative is refused at compile."""
    mark: str = ""
    """Distinguishes engines with otherwise equal options."""
    # Not compared, because engines with equal options must be equal.
    journal: Journal = field(init=False, default_factory=Journal, compare=False, repr=False)

    @property
    def _engine(self) -> GraphCompiler:
        return registry.create(self.inner)

    def why_not(self, node: Node, function: Function) -> str | None:
        self.journal.note("why_not")
        return self._explain_refusal(node, function)

    def _explain_refusal(self, node: Node, function: Function) -> str | None:
        if not any(fnmatch.fnmatchcase(node.op, glob) for glob in self.takes.split("|")):
            return f"it is set to take {self.takes}, and {node.op} is none of these"
        if parse_device_kind(node.device or "cpu") not in self._engine.devices:
            return f"the node runs on {node.device}; engine {self.inner!r} runs on {', '.join(self._engine.devices)}"
        return self._engine.why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        self.journal.note("compile")
        return ObservedExecutable(self._compile_inner(function, context), self.journal)

    def _compile_inner(self, function: Function, context: CompileContext) -> Executable:
        """Compile on the inner engine, and record the Function; raises CompileRefused for a combination in `refuses`."""
        operators = {node.op for node in function.nodes}
        for combination in self.refuses.split("|") if self.refuses else ():
            if operators.issuperset(combination.split("+")):
                raise CompileRefused(f"the {self.name} engine is set to refuse {combination}")
        self.journal.compiled.append(function)
        return self._engine.compile(function, context)

    def version(self) -> str:
        return f"{self.name} of {self._engine.version()}"


class ObservedExecutable(Executable):
    """Delegates to another executable, and counts the calls in a journal."""

    def __init__(self, inner: Executable, journal: Journal) -> None:
        self.inner = inner
        self.journal = journal

    def prepare(self) -> None:
        self.journal.note("prepare")
        self.inner.prepare()

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        self.journal.note("run")
        return self.inner.run(inputs, options)

    def memory(self) -> Sequence[MemoryUse] | None:
        return self.inner.memory()

    def close(self) -> None:
        self.journal.note("close")
        self.inner.close()


@dataclass(frozen=True)
class FaultyEngine(RecordingEngine):
    """An engine that misbehaves in one method, in one way, in every call or only in the n-th one.

    Raises OptionError if ``how`` is not possible in ``where``, such as a wrong value in `compile`.
    """

    name: ClassVar[str] = "faulty"
    where: Where = "run"
    how: How = "raise"
    """``raise`` a RuntimeError, ``refuse`` with a reason, ``hang`` for an hour, ``kill`` the process, or exhaust the ``memory``.
    For `run` also: the first output has another ``dtype`` or ``shape``, is ``nan``, has a wrong ``value`` or is a ``scalar`` of
    NumPy; the last output is ``missing``; or ``write_input`` overwrites an element of the first input."""
    nth: int = 0
    """The call that misbehaves, counted from 1; 0 means every call."""

    def __post_init__(self) -> None:
        if self.where not in _METHODS_BY_FAULT[self.how]:
            raise OptionError(
                f"{self.where!r} cannot misbehave by {self.how!r}, only {', '.join(map(repr, _METHODS_BY_FAULT[self.how]))} can"
            )

    def is_due(self, where: Where, count: int) -> bool:
        """Whether the ``count``-th call of the method ``where`` must misbehave."""
        return where == self.where and self.nth in (0, count)

    def count_call(self, where: Where) -> int:
        """Count a call and return its number. Raise, hang or kill the process if this call must do so."""
        count = self.journal.note(where)
        if self.is_due(where, count) and self.how in _FAULT_ACTIONS:
            _FAULT_ACTIONS[self.how](where)
        return count

    def why_not(self, node: Node, function: Function) -> str | None:
        if self.is_due("why_not", self.count_call("why_not")):
            return "the faulty engine is set to decline"
        return self._explain_refusal(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        if self.is_due("compile", self.count_call("compile")) and self.how == "refuse":
            raise CompileRefused("the faulty engine is set to refuse")
        return _FailingExecutable(self._compile_inner(function, context), self)

    def version(self) -> str:
        self.count_call("version")
        return super().version()


class _FailingExecutable(Executable):
    def __init__(self, inner: Executable, engine: FaultyEngine) -> None:
        self.inner = inner
        self.engine = engine

    def prepare(self) -> None:
        self.engine.count_call("prepare")
        self.inner.prepare()

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        count = self.engine.count_call("run")
        results = list(self.inner.run(inputs, options))
        if self.engine.is_due("run", count) and self.engine.how in _RESULT_FAULTS:
            _corrupt_results(self.engine.how, results, inputs)
        return results

    def memory(self) -> Sequence[MemoryUse] | None:
        self.engine.count_call("memory")
        return self.inner.memory()

    def close(self) -> None:
        # Closed first: a fault in `close` must not leak the inner executable in the tests' process.
        self.inner.close()
        self.engine.count_call("close")


def _raise(where: Where) -> None:
    raise RuntimeError(f"the faulty engine is set to fail in {where}")


def _exhaust(where: Where) -> None:
    """Allocate up to 1 TiB, then raise MemoryError."""
    # Zeros are mapped lazily, so this exceeds the address space or the limit of a worker, and not the machine's memory.
    blocks = [np.zeros(1 << 30, np.uint8) for _ in range(1 << 10)]
    raise MemoryError(f"the faulty engine is set to allocate {len(blocks)} GiB in {where}")


_FAULT_ACTIONS: dict[How, Callable[[Where], object]] = {
    "raise": _raise,
    "hang": lambda where: time.sleep(3600),
    "kill": lambda where: os.kill(os.getpid(), signal.SIGKILL),
    "memory": _exhaust,
}


def _corrupt_results(how: How, results: list[Any], inputs: Sequence[Any]) -> None:
    """Corrupt ``results`` in place, or write to the first input, as ``how`` requests."""
    if how == "write_input":
        inputs[0].reshape(-1)[:1] = 0
    elif how == "missing":
        results.pop()
    else:
        results[0] = _CORRUPTIONS[how](results[0].copy())  # a copy, since a result may be an input or a constant


_CORRUPTIONS: dict[How, Any] = {
    "dtype": lambda array: array.astype(np.float64 if array.dtype != np.float64 else np.float32),
    "shape": lambda array: array[np.newaxis],
    "nan": lambda array: array * array.dtype.type(np.nan) if array.dtype.kind == "f" else ~array,
    "value": lambda array: (array.reshape(-1) + array.dtype.type(1)).reshape(array.shape) if array.dtype.kind != "b" else ~array,
    "scalar": lambda array: array.reshape(-1)[0],
}
