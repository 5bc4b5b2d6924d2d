"""What measuring has shown of a loop nest on this machine: the quickest schedule, or that XRT's own rules are quicker."""

from __future__ import annotations

import hashlib
import json
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.target import Target

__all__ = ["Record", "keep", "kept", "key_of", "scheduled"]

FORMAT = 1
LARGEST = 4_000_000
"""Bytes of a record; a trace has some kilobytes."""


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome for one loop nest."""

    trials: int
    """How many trials were asked for the region that it was part of."""
    seconds: float
    """The quickest schedule that computes the same as the default, infinite where there is none; measured in turn with it."""
    default_seconds: float
    """The schedule of XRT's own rules."""
    trace: str | None
    """TVM's trace of the quickest schedule as JSON; None where the default is as quick."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the record that a text holds; raises ValueError for anything else."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError("no record of this format")
        kinds = {"trials": int, "seconds": float, "default_seconds": float, "trace": str | None}
        if data.keys() != kinds.keys() or not all(isinstance(data[name], kind) for name, kind in kinds.items()):
            raise ValueError("a field of the record is missing, or of another type")
        return cls(**data)

    def __str__(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"


def key_of(function: tirx.PrimFunc, target: Target, threads: int) -> str:
    """Return the name under which a loop nest's record is kept: the loops, the processor, the threads and TVM's versions."""
    anonymous = IRModule({"main": function.with_attr("global_symbol", "main")})
    facts = (tvm_ffi.structural_hash(anonymous), str(target), threads, tvm.__version__, tvm_ffi.__version__)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def kept(folder: Path | None, key: str) -> Record | None:
    """Return the record in the folder; None where there is none, or one that cannot be read."""
    if folder is None:
        return None
    with suppress(OSError, ValueError, RecursionError):
        path = folder / f"{key}.json"
        return Record.parse(path.read_text()) if path.stat().st_size <= LARGEST else None
    return None


def keep(folder: Path | None, key: str, record: Record) -> None:
    """Write the record to the folder, whole or not at all; where that fails the record is lost and nothing else."""
    if folder is None:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(suffix=".partial", dir=folder) as beside:
            whole = Path(beside) / "record"
            whole.write_text(str(record))
            whole.replace(folder / f"{key}.json")


def scheduled(function: tirx.PrimFunc, trace: str) -> tirx.PrimFunc:
    """Return the function as a trace schedules it; raises what TVM raises where the trace is not one of these loops."""
    schedule = s_tir.Schedule(function)
    s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)
