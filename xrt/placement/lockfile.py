"""What a lock means: the plan that it holds for a model, and what differs where it does not hold any more."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xrt import __version__
from xrt.cache.signature import make_context_key
from xrt.errors import CalibrationError, DeviceError, LockError, PlanError
from xrt.formats.calibration_table import ValueRange
from xrt.formats.placement_file import (
    BalancedValue,
    Baseline,
    CandidateRecord,
    FormKind,
    NodeRange,
    PlacementFile,
    read_placement,
)
from xrt.graph import FrozenDict, Function, NodePattern, hash_values
from xrt.graph.device_names import normalize_device
from xrt.partition.partitioner import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.quantize import (
    QuantizationOptions,
    find_channel_factors,
    fold_batch_normalization,
    fuse_biases,
    list_balanced_values,
    list_calibrated_values,
    pack_weights,
    quantize,
    quantize_dynamically,
    quantize_weights,
    scale_channels,
    why_not_quantized,
)
from xrt.placement.result import PlacementRequest, unwrap
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.partition import Plan
    from xrt.placement.result import CandidateComparison

__all__ = [
    "DEVICE_OF",
    "FIGURES",
    "QuantizedForm",
    "balance_values",
    "create_lock",
    "find_balance",
    "fit_balanced_table",
    "fit_table",
    "list_candidate_records",
    "list_machine_mismatches",
    "list_mismatches",
    "list_node_ranges",
    "list_quantizable_nodes",
    "make_planned_function",
    "plan_from_ranges",
    "prepare_for_quantization",
    "read_lock",
    "read_shapes",
    "select_nodes",
]

OPTIONS = QuantizationOptions()
BITS: Mapping[FormKind, int] = {"packed8": 8, "packed4": 4, "stored8": 8, "stored4": 4}
"""Of the weights of forms with nothing else in integers."""


@dataclass(frozen=True)
class QuantizedForm:
    """How a model is quantized."""

    table: CalibrationTable | None = None
    """The ranges, which only the kind ``static`` has."""
    kept: frozenset[int] = frozenset()
    """Positions of nodes of the prepared model that stay in float32."""
    kind: FormKind = "static"
    balance: tuple[BalancedValue, ...] = ()
    """The values whose channels are balanced first."""
    reduce_range: bool = False
    """Whether weights that are multiplied in integers have 7 bits."""

    def apply(self, prepared: Function) -> Function:
        """Return the quantized form of a prepared model; raises CalibrationError for a table of another model."""
        names = [name for at, name in list_quantizable_nodes(prepared) if at not in self.kept]
        if not names:
            return prepared
        return drop_dead_nodes(infer_shapes(self._rewrite(balance_values(prepared, self.balance), names)))

    def _rewrite(self, function: Function, names: Collection[str]) -> Function:
        if self.kind == "static":
            assert self.table is not None  # a static form is made of one
            return quantize(function, self.table, select_nodes(names, reduce_range=self.reduce_range))
        if self.kind == "dynamic":
            return quantize_dynamically(function, select_nodes(names, reduce_range=self.reduce_range))
        narrow = BITS[self.kind] == 4
        options = select_nodes(names, weights="uint4" if narrow else "int8", symmetric_weights=not narrow)
        return (pack_weights if self.kind.startswith("packed") else quantize_weights)(function, options)


def select_nodes(names: Collection[str], **options: Any) -> QuantizationOptions:
    """Return the options that quantize just these nodes."""
    return QuantizationOptions(include=(NodePattern(tuple(sorted(names)), by_name=True),), **options)


def find_balance(prepared: Function, magnitudes: Mapping[str, Any]) -> tuple[BalancedValue, ...]:
    """Return the powers of two that channels are to be divided by, for the largest magnitude of each over examples."""
    found = find_channel_factors(prepared, magnitudes)
    exponents = {name: np.rint(np.log2(factors)).astype(int) for name, factors in found.items()}
    return tuple(BalancedValue(name, tuple(own.tolist())) for name, own in exponents.items())


def balance_values(prepared: Function, balance: Collection[BalancedValue]) -> Function:
    """Return the model with channels divided by powers of two, and the weights behind them multiplied.

    Raises CalibrationError for values of another model.
    """
    if not balance:
        return prepared
    known = list_balanced_values(prepared)
    for one in balance:
        if one.name not in known or _count_channels(prepared, one.name) != len(one.exponents):
            raise CalibrationError(f"the model has no value {one.name!r} of {len(one.exponents)} channels that can be balanced")
    factors = {one.name: np.exp2(np.array(one.exponents, np.float32)) for one in balance}
    return infer_shapes(scale_channels(prepared, factors))


def _count_channels(function: Function, value: str) -> int:
    producer = function.producer(value)
    return 0 if producer is None else function.constants[producer.inputs[1]].shape[0]


def fit_balanced_table(
    table: CalibrationTable, prepared: Function, balanced: Function, channels: Mapping[str, tuple[Any, Any]]
) -> CalibrationTable:
    """Return the table with the ranges of a balanced model: those of the prepared one, or of channels once they are divided.

    ``channels`` has the least and the greatest number of each channel of the values that are balanced, divided already.
    """
    known, keys = table.bind(prepared), hash_values(balanced)
    for name in list_calibrated_values(balanced, OPTIONS):
        found = known.get(name)
        if found is None or table.find(keys[name]) is not None:
            continue
        if name in channels:
            low, high = (float(pick(own)) for pick, own in zip((np.min, np.max), channels[name], strict=True))
            found = ValueRange(key=found.key, low=low, high=high, least=low, most=high, batches=found.batches)
        table = table.add(name, keys[name], found)
    return table


def prepare_for_quantization(function: Function) -> Function:
    """Return the model with normalizations and biases in the products and convolutions before them; its types must be known."""
    return infer_shapes(fuse_biases(infer_shapes(fold_batch_normalization(function))))


def list_quantizable_nodes(prepared: Function) -> list[tuple[int, str]]:
    """Return position and name of each node that can be quantized."""
    return [(at, node.name) for at, node in enumerate(prepared.nodes) if why_not_quantized(node, prepared, OPTIONS) is None]


def fit_table(table: CalibrationTable, prepared: Function, original: Function) -> CalibrationTable:
    """Return the table for a prepared model: ranges of the original model are those of the values of the same names.

    Preparing keeps the names of values and changes what computes some of them. Raises CalibrationError where the table has no
    value of either.
    """
    needed = [name for name in list_calibrated_values(prepared, OPTIONS) if prepared.defines(name)]
    keys = hash_values(prepared)
    missing = [name for name in needed if table.find(keys[name]) is None]
    if not missing:
        return table
    known, given = _bind_what_fits(table, original), {value.name for value in prepared.inputs}
    if not any(name in known for name in missing) and all(name in missing or name in given for name in needed):
        raise CalibrationError(
            f"the calibration table has ranges of {len(table)} values, and none is computed in this model: it was made of "
            "another model, or the weights have changed since. Calibrate this one: m.calibrate(batches)"
        )
    for name in missing:
        if name in known:
            table = table.add(name, keys[name], known[name])
    return table


def _bind_what_fits(table: CalibrationTable, function: Function) -> dict[str, ValueRange]:
    return {name: found for name, key in hash_values(function).items() if (found := table.find(key)) is not None}


def make_planned_function(function: Function, record: PrecisionRecord | None) -> Function:
    """Return what a placement with that record plans: the model itself, or its quantized form."""
    if record is None or not record.is_quantized or (record.form == "static" and record.table is None):
        return function
    balance = record.balance if record.is_balanced else ()
    form = QuantizedForm(record.table, frozenset(one.at for one in record.kept), record.form, balance, record.reduce_range)
    return form.apply(prepare_for_quantization(function))


T = TypeVar("T", CandidateRecord, Baseline)
KEPT = 16
"""Contenders that a lock names."""
DEVICE_OF = "device of "
"""Before the spec of an engine: the option that says where it runs, if that is elsewhere than the module."""
LONGEST = 400
"""Characters of a name that a lock holds."""
SHOWN = 12
"""Characters of a fingerprint that a person compares."""
# ---------------------------------------------------------------------- from a plan to a lock


def create_lock(
    plan: Plan,
    race: CandidateComparison,
    request: PlacementRequest,
    *,
    baseline: Baseline | None = None,
    source: Mapping[str, str] = FrozenDict(),
    values: Mapping[str, str] = FrozenDict(),
    precision: PrecisionRecord | None = None,
    now: datetime | None = None,
) -> PlacementFile:
    """Return the lockfile of a plan for that request.

    The plan is of the request's Function, or of the quantized form that ``precision`` describes. ``source`` says where the model
    came from, for a later check, and ``values`` in which files inputs were; others are random.
    """
    function, used = request.function, _select(request.devices, (launch.engine for launch in plan.launches))
    return PlacementFile(
        writer=__version__,
        date=(now or datetime.now(UTC)).strftime("%Y-%m-%d"),
        model={**_facts_of_model(function), **source},
        inputs=_inputs(function),
        engines={engine.spec: engine.version() for engine in unwrap(request.engines) if engine.spec in plan.engines},
        machine=_machine(request.context, used),
        options=_options(request, used),
        plan=list_node_ranges(plan, make_planned_function(function, precision)),
        candidates=tuple(map(_round, list_candidate_records(race)[:KEPT])),
        baseline=None if baseline is None else _round(baseline),
        values=values,
        precision=precision,
    )


def _round(record: T) -> T:
    """Return the record with six digits of each number: more say nothing, and a diff would show them."""
    figures = {name: value for name, value in record.to_dict().items() if isinstance(value, float)}
    return record.replace(**{name: float(f"{value:.6g}") for name, value in figures.items()})


def read_lock(path: str | os.PathLike[str]) -> PlacementFile:
    """Return the lockfile at a path. Raises PlacementFileError where it cannot be read, and where it is no lockfile."""
    document, name = read_placement(path), os.fspath(path)
    if not document.model:
        raise LockError(f"{name!r} has no section 'model', so it is no lockfile; `xrt lock MODEL -o FILE` writes one", file=name)
    return document


def read_shapes(lock: PlacementFile, function: Function) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the Function's inputs that the lock was made for, as far as it has them."""
    matches = {value.name: _SHAPED.fullmatch(lock.inputs.get(value.name[:LONGEST], "")) for value in function.inputs}
    return {name: tuple(map(int, filter(None, match[1].split(",")))) for name, match in matches.items() if match}


_SHAPED = re.compile(r"\w+\[((?:\d{1,18}(?:,\d{1,18})*)?)\]", re.ASCII)
"""A tensor's type whose extents are all numbers."""


def list_node_ranges(plan: Plan, function: Function) -> tuple[NodeRange, ...]:
    """Return where a plan has the nodes, neighbours in the model's order together."""
    homes, groups, names = map_nodes_to_engines(plan), map_nodes_to_regions(plan), [node.name for node in function.nodes]
    found, at = [], 0
    for group, members in groupby(names, groups.__getitem__):
        run = list(members)
        first, last = run[0][:LONGEST], run[-1][:LONGEST]
        found.append(NodeRange(group, homes[run[0]], at, len(run), first, last if len(run) > 1 else ""))
        at += len(run)
    return tuple(found)


def list_candidate_records(race: CandidateComparison, function: Function | None = None) -> tuple[CandidateRecord, ...]:
    """Return the result of each candidate; with a Function, its regions too."""
    return tuple(
        CandidateRecord(
            one.title,
            one.verdict,
            number == race.baseline,
            **{name: getattr(one, name) for name in FIGURES},
            note=one.note[:1000],
            regions=one.regions if function else (),
            ranges=list_node_ranges(one.plan, function) if function else (),
        )
        for number, one in enumerate(race.contenders)
    )


FIGURES = ("seconds", "low", "high", "ratio", "ratio_low", "ratio_high")
"""The numbers of a candidate, in its record and in its result."""
# ---------------------------------------------------------------------- from a lock to a plan


def plan_from_ranges(ranges: Sequence[NodeRange], request: PlacementRequest) -> Plan:
    """Return the plan with those regions; raises LockError where it is no plan of the request's Function on its engines."""
    homes: dict[str, str] = {}
    groups: dict[str, int] = {}
    function = request.function
    for run in ranges:
        for name in _names(run, function):
            if name in homes:
                raise LockError(f"node {name!r} is placed twice")
            homes[name], groups[name] = run.engine, run.region
    if len(homes) < len(function.nodes):
        left = next(node.name for node in function.nodes if node.name not in homes)
        raise LockError(f"{len(homes)} of {len(function.nodes)} nodes are placed, and not {left!r}")
    try:
        where, implicit = request.device_map, request.implicit
        return plan_from_assignment(function, request.engines, homes, groups=groups, implicit=implicit, device=where)
    except PlanError as error:
        raise LockError(f"it is no plan any more: {error}") from error


def _names(run: NodeRange, function: Function) -> Iterator[str]:
    if run.at + run.nodes > len(function.nodes):
        last = run.at + run.nodes
        raise LockError(f"nodes up to number {last} are placed, and the model has {len(function.nodes)} of them")
    return (node.name for node in function.nodes[run.at : run.at + run.nodes])


# ---------------------------------------------------------------------- what differs


def list_mismatches(lock: PlacementFile, request: PlacementRequest, *, for_check: bool = False) -> tuple[str, ...]:
    """Return in which ways a lock was made for something else, each as a clause; empty where it applies.

    The engines of the plan count. ``for_check``, those of the baseline count too, and the clustering options do not.
    """
    if reasons := tuple(_of_model(lock, request.function)):
        return reasons  # of another model nothing else is of interest
    ranges = [*lock.plan, *(lock.baseline.ranges if lock.baseline and for_check else ())]
    used = _select(request.devices, (run.engine for run in lock.plan))
    options = _options(request, used) | ({"clustering": lock.options.get("clustering", "")} if for_check else {})
    return (
        *_of_engines(lock, request.engines, (run.engine for run in ranges)),
        *_of_facts(lock.machine, _machine(request.context, used)),
        *_of_facts(lock.options, options),
    )


def list_machine_mismatches(lock: PlacementFile, context: CompileContext) -> tuple[str, ...]:
    """Return in which ways a lock was made on another machine, each as a clause: rates of two machines are not comparable."""
    mine = _machine(context, {})
    return tuple(_of_facts({name: lock.machine.get(name, "unknown") for name in mine}, mine))


def _of_model(lock: PlacementFile, function: Function) -> Iterator[str]:
    mine = _facts_of_model(function)
    if lock.model.get("fingerprint") == mine["fingerprint"]:
        return
    inputs = tuple(_of_facts(_called(lock.inputs), _called(_inputs(function))))
    if inputs and lock.inputs.keys() == _inputs(function).keys() and lock.model.get("nodes") == mine["nodes"]:
        yield f"the sizes differ: {'; '.join(inputs)}"  # which alone makes another fingerprint
        return
    yield from inputs
    yield from _of_facts(_counted(lock.model), _counted(mine))
    was, is_ = lock.model.get("fingerprint", "unknown"), mine["fingerprint"]
    yield f"the model {lock.model.get('name', '')!r} had fingerprint {was[:SHOWN]}, and {mine['name']!r} has {is_[:SHOWN]}"


def _called(inputs: Mapping[str, str]) -> dict[str, str]:
    return {f"input {name}": type_ for name, type_ in inputs.items()}


def _counted(model: Mapping[str, str]) -> dict[str, str]:
    return {"the number of nodes": model.get("nodes", "unknown")}


def _of_engines(lock: PlacementFile, engines: Sequence[GraphCompiler], used: Iterable[str]) -> Iterator[str]:
    by_spec = {engine.spec: engine for engine in unwrap(engines)}
    for spec in dict.fromkeys(used):
        if spec not in by_spec:
            yield f"engine {spec!r}, which has a part of the plan, is not in the list of engines or not ready"
        elif (was := lock.engines.get(spec, "unknown")) != (now := by_spec[spec].version()):
            yield f"engine {spec!r} was {was} and is {now}"


def _of_facts(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**was, **now}:
        if name not in now:
            yield f"{name} was {was[name]} and is not there"
        elif name not in was:
            yield f"{name} is {now[name]} and was not there"
        elif was[name] != now[name]:
            yield f"{name} was {was[name]} and is {now[name]}"


# ---------------------------------------------------------------------- facts


def _facts_of_model(function: Function) -> dict[str, str]:
    return {"name": function.name, "fingerprint": function.fingerprint, "nodes": str(len(function.nodes))}


def _inputs(function: Function) -> dict[str, str]:
    return {value.name[:LONGEST]: str(value.type) for value in function.inputs}


def _select(devices: Mapping[str, str], specs: Iterable[str]) -> dict[str, str]:
    """Return the devices of the engines that a plan uses; the devices of others may be unavailable."""
    return {spec: devices[spec] for spec in dict.fromkeys(specs) if spec in devices}


def _machine(context: CompileContext, devices: Mapping[str, str]) -> dict[str, str]:
    """Return the description of the machine, and of each requested device with its model; an unavailable device is left out."""
    sets, _, processor = dict(make_context_key(context))["machine"].partition("; ")
    system, machine, *extensions = sets.split(" ")
    return {"system": f"{system} {machine}", "processor": processor, "extensions": " ".join(extensions)} | _hardware(
        {context.device, *devices.values()} - {"cpu"}, context
    )


def _hardware(names: Iterable[str], context: CompileContext) -> dict[str, str]:
    found = {}
    for name in sorted(names):
        with suppress(DeviceError):
            accelerator = on_device(name, context).accelerator
            found[normalize_device(name)] = accelerator.hardware if accelerator is not None else ""
    return found


def _options(request: PlacementRequest, devices: Mapping[str, str]) -> dict[str, str]:
    context = request.context
    own = {"precision": context.options.precision, "device": context.device, "threads": str(context.threads)}
    elsewhere = {f"{DEVICE_OF}{spec}": name for spec, name in sorted(devices.items())}
    return {**own, **elsewhere, "clustering": str(request.clustering)}
