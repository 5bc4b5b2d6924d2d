"""What measuring has shown of a loop nest on this machine: the quickest schedule, or that XRT's own rules are quicker."""

from __future__ import annotations

import hashlib
import json
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.target import Target

from xrt.errors import CacheWarning, warn

__all__ = ["TuningRecord", "apply_record", "is_plain", "load_records", "make_record_key", "store_record"]

FORMAT = 1
LARGEST = 4_000_000
"""Bytes of a record; a trace has some kilobytes."""
SHOWN = 200
"""Characters of what is wrong with a record."""

_ARRANGING = frozenset(
    {
        *("GetSBlock", "GetLoops", "GetChildBlocks", "GetConsumers", "GetProducers", "GetOutputBlocks", "EnterPostproc"),
        *("SamplePerfectTile", "SamplePartitionedTile", "SampleCategorical", "SampleComputeLocation", "Annotate", "Unannotate"),
        *("Split", "Fuse", "Reorder", "AddUnitLoop", "Parallel", "Vectorize", "Unroll", "CacheRead", "CacheWrite", "RFactor"),
        *("ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "DecomposeReduction"),
    }
)
"""What a trace may consist of: these arrange loops, and TVM checks that they compute the same. Others take the trace's word."""
_NOTES = ("meta_schedule.", "pragma_auto_unroll_max_step", "pragma_unroll_explicit")
"""How the annotations of such a trace begin. There are others with which TVM links code that the annotation contains."""


@dataclass(frozen=True, slots=True)
class TuningRecord:
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
        if not (data["seconds"] >= 0 and data["default_seconds"] >= 0 and type(data["trials"]) is int and data["trials"] >= 0):
            raise ValueError("a number of the record is none of trials or of seconds")
        if data["trace"] is not None and not is_plain(json.loads(data["trace"])):
            raise ValueError("the trace of the record does more than arrange loops")
        return cls(**data)

    def __str__(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"


def make_record_key(function: tirx.PrimFunc, target: Target, threads: int) -> str:
    """Return the name under which a loop nest's record is kept: the loops, the processor, the threads and TVM's versions."""
    anonymous = IRModule({"main": function.with_attr("global_symbol", "main")})
    facts = (tvm_ffi.structural_hash(anonymous), str(target), threads, tvm.__version__, tvm_ffi.__version__)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def load_records(folder: Path | None, key: str) -> TuningRecord | None:
    """Return the record in the folder; None where there is none, and with a warning where it cannot be read."""
    if folder is None:
        return None
    path = folder / f"{key}.json"
    try:
        return TuningRecord.parse(_content(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split())[:SHOWN]
        warn(
            f"the record of tuning {path} cannot be used: {message}. The loops are tuned again where tune= says so", CacheWarning
        )
        return None


def _content(path: Path) -> str:
    state = path.stat()
    if not stat.S_ISREG(state.st_mode) or state.st_size > LARGEST:
        raise ValueError("it is no record, which is a regular file of at most 4 MB")
    return path.read_text(encoding="utf-8")


def is_plain(trace: Any) -> bool:
    """Whether a trace does nothing but arrange loops; raises nothing, whatever it is."""
    if not isinstance(trace, list) or len(trace) != 2 or not all(isinstance(part, list) for part in trace):
        return False
    return all(isinstance(step, list) and len(step) == 4 and _arranges(step[0], step[2]) for step in trace[0])


def _arranges(kind: object, attributes: object) -> bool:
    if not isinstance(kind, str) or kind not in _ARRANGING:
        return False
    notes = attributes if kind == "Annotate" else []
    return isinstance(notes, list) and all(isinstance(note, str) and note.startswith(_NOTES) for note in notes)


def store_record(folder: Path | None, key: str, record: TuningRecord) -> None:
    """Write the record to the folder, whole or not at all; where that fails the record is lost and nothing else."""
    if folder is None:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(suffix=".partial", dir=folder) as scratch:
            whole = Path(scratch) / "record"
            whole.write_text(str(record))
            whole.replace(folder / f"{key}.json")


def apply_record(function: tirx.PrimFunc, trace: str) -> tirx.PrimFunc:
    """Return the function as a trace schedules it; raises what TVM raises where the trace is not one of these loops."""
    schedule = s_tir.Schedule(function)
    s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)
