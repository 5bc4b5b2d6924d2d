"""Every reader of XRT that takes what it is given from anywhere, as a table.

The files of the cost store have theirs in ``tests/placement/test_damaged_files.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.malformed_inputs import malicious, samples
from tests.malformed_inputs.case import Case, Reader
from tests.malformed_inputs.mutators import BLIND, JSON, TEXTUAL, Damage, alter_field, alter_section, alter_table
from xrt.cache import CompileCache
from xrt.cache.entries import ENTRIES
from xrt.engines import split_specs
from xrt.engines.contract import registry
from xrt.engines.native import library
from xrt.formats import program_record
from xrt.formats.arrays import read_npy, read_npz
from xrt.formats.onnx import load
from xrt.formats.placement_file import dumps
from xrt.formats.text import parse, to_text
from xrt.graph import Function
from xrt.graph.verify import verify
from xrt.module import bundle
from xrt.module.lockfile import LockedPlacement
from xrt.partition import Pin, Plan
from xrt.passes import infer_shapes
from xrt.placement.records import list_mismatches, plan_from_ranges, read_lock

_FIELDS: tuple[Damage, ...] = (alter_field,) * 10 + BLIND
_SEALED: tuple[Damage, ...] = (alter_section,) * 8 + (alter_table,) * 3 + BLIND


def _use(function: Function) -> None:
    """Do with a Function what everyone does who has read one."""
    str(function)
    _ = function.fingerprint
    verify(function)
    infer_shapes(function)
    to_text(function)


def _onnx(path: Path) -> None:
    _use(load(path))


def _content(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _text(path: Path) -> None:
    _use(parse(_content(path)))


def _plan(path: Path) -> None:
    plan = Plan.from_bytes(path.read_bytes())
    str(plan)
    to_text(plan)
    for launch in plan.launches:
        _use(launch.function)


def _bundle(path: Path) -> None:
    with bundle.load(path, cache=CompileCache()) as module:
        module.explain() if module.inputs else None


def _spec(path: Path) -> None:
    for spec in split_specs(_content(path)):
        registry.create(spec)


def _pin(path: Path) -> None:
    pin = Pin.parse(_content(path))
    str(pin)
    list(pin.find_matches(["a" * 200, "/layer1/conv", "Conv"]))


def _arrays(path: Path) -> None:
    (read_npz if path.suffix == ".npz" else read_npy)(path)


def _lock(path: Path) -> None:
    lock, request = read_lock(path), samples.placement_request()
    dumps(lock)
    list_mismatches(lock, request)
    LockedPlacement(lock, "'model.lock'").engines([])
    for ranges in (lock.plan, *([lock.baseline.ranges] if lock.baseline else [])):
        plan_from_ranges(ranges, request)


def _no_files(name: str) -> Callable[[], Mapping[str, Case]]:
    return partial(malicious.no_files, name)


_ALL: Sequence[Reader] = (
    Reader("onnx", _onnx, samples.models, _FIELDS, malicious.models),
    Reader("external data", _onnx, samples.external, _FIELDS, malicious.external),
    Reader("text", _text, samples.texts, TEXTUAL, malicious.texts),
    Reader("plan", _plan, samples.plans, _FIELDS),
    Reader("bundle", _bundle, samples.bundles, _SEALED, _no_files("model.xrt")),
    Reader("lock", _lock, samples.locks, TEXTUAL + JSON, malicious.locks),
    Reader("cache entry", ENTRIES.read, samples.cache_entries, _SEALED),
    Reader("model plans", lambda path: program_record.parse(path.read_bytes()), samples.model_plans, TEXTUAL + JSON),
    Reader("spec", _spec, samples.specs, TEXTUAL, malicious.specs),
    Reader("pin", _pin, samples.pins, TEXTUAL, malicious.pins),
    Reader("arrays", _arrays, samples.arrays, BLIND + TEXTUAL[-4:], malicious.arrays),
    Reader("native library", library.load, tuple, (), malicious.libraries),
)
READERS: Mapping[str, Reader] = {reader.name: reader for reader in _ALL}
"""By name. One without samples has crafted cases only: a damaged native library is code."""
