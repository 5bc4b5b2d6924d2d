"""Loops scheduled by measurement: existing records are used, and else MetaSchedule runs in a process of its own.

MetaSchedule runs new, untested code, so its crash or hang must not be one of XRT's process. It costs seconds per trial. Its
results are kept in the folder that the cache gives to the engine, and used for later tuning of the same loops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target
from tvm_ffi.serialization import to_json_graph_str

from xrt.engines.tvm.tuning_records import TuningRecord, apply_record, load_records, make_record_key, store_record
from xrt.errors import CompileRefused, OptionError
from xrt.processes.client import WorkerFailure, WorkerProcess

__all__ = ["SOUND_FFI", "ScheduleTuner", "check_tunable"]

log = logging.getLogger("xrt.engines.tvm")

SOUND_FFI = "0.1.14.post0"
"""The release of TVM's ffi library with which MetaSchedule is known to work; with the next one it ends its process."""
_NEEDED = ("cloudpickle", "psutil", "tornado")

Report = Callable[[str], object]


def check_tunable() -> None:
    """Raise OptionError where MetaSchedule cannot work: a library that it needs is missing, or another release crashes it."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise OptionError(f"tvm: tune needs {', '.join(missing)}; pip install 'xrt[tvm-tune]'")
    if tvm_ffi.__version__ != SOUND_FFI:
        raise OptionError(
            f"tvm: tune works with apache-tvm-ffi {SOUND_FFI}, and {tvm_ffi.__version__} is installed, with which TVM's "
            f"MetaSchedule is not known to work (0.1.15.post2 ends its process); pip install 'xrt[tvm-tune]'"
        )


@dataclass(frozen=True, slots=True)
class ScheduleTuner:
    """How the loops of one region are tuned."""

    trials: int
    """Schedules to try, of all loop nests together."""
    threads: int
    folder: Path | None
    """Where records are kept; None keeps none."""
    report: Report | None
    """Called with the progress."""

    def apply(self, module: IRModule, target: Target, without: frozenset[str]) -> IRModule:
        """Return the module with those loops scheduled for which measuring has found a better way than the default.

        Loops of unknown extents, those that read by indices or stand in ``without`` keep the default. Raises CompileRefused
        where tuning fails as a whole.
        """
        functions = {g.name_hint: f for g, f in module.functions_items() if g.name_hint not in without and _is_tunable(f)}
        keys = {name: make_record_key(function, target, self.threads) for name, function in functions.items()}
        records = {
            key: record for key in keys.values() if (record := load_records(self.folder, key)) and record.trials >= self.trials
        }
        first = {key: name for name, key in reversed(keys.items())}
        wanted = {name: functions[name] for key, name in first.items() if key not in records}
        for name, record in self._measured(wanted, target):
            records[keys[name]] = record
            store_record(self.folder, keys[name], record)
        return _replaced(module, {name: (functions[name], records[key]) for name, key in keys.items() if key in records})

    def _measured(self, functions: Mapping[str, tirx.PrimFunc], target: Target) -> Iterator[tuple[str, TuningRecord]]:
        if not functions:
            return
        request = {
            "loops": to_json_graph_str(IRModule(dict(functions))),
            "target": to_json_graph_str(target),
            "trials": self.trials,
            "threads": self.threads,
        }
        for name, record in _ask_tuner(request, self._tell).items():
            yield name, TuningRecord.parse(record)

    def _tell(self, text: str) -> None:
        log.info("tuning: %s", text)
        if self.report is not None:
            self.report(f"tvm tunes: {text}")


def _is_tunable(function: Any) -> bool:
    """Whether it can be run on random numbers: loops over floats, of known extents."""
    return isinstance(function, tirx.PrimFunc) and all(map(_is_fixed, function.params))


def _is_fixed(parameter: Any) -> bool:
    extents = getattr(parameter, "shape", (None,))  # a number has none
    return str(parameter.dtype) in ("float32", "float64") and all(isinstance(extent, tirx.IntImm) for extent in extents)


def _replaced(module: IRModule, measured: Mapping[str, tuple[tirx.PrimFunc, TuningRecord]]) -> IRModule:
    functions = dict(module.functions_items())
    for name, (function, record) in measured.items():
        if record.trace is not None:
            with suppress(Exception):  # a trace of another TVM, or of unknown origin: the default rules serve
                functions[module.get_global_var(name)] = apply_record(function, record.trace)
    return IRModule(functions, attrs=module.attrs)


# ---------------------------------------------------------------------- the process


def _ask_tuner(request: Mapping[str, Any], report: Report) -> dict[str, str]:
    """Return a record for each loop nest, as text; raises CompileRefused where the process fails, or ends before it should."""
    worker = WorkerProcess("xrt.engines.tvm.tuner:main", environment={"TVM_NUM_THREADS": str(request["threads"])})
    try:
        return worker.ask(request, on_progress=report)[0]
    except WorkerFailure as error:
        raise CompileRefused(f"TVM's MetaSchedule failed: {error}; leave out tune= to compile untuned") from error
    finally:
        worker.end()
