"""What a lock means: the plan that it holds for a model, and what differs where it does not hold any more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from xrt import __version__
from xrt.cache.signature import make_context_key
from xrt.errors import DeviceError, LockError, PlanError
from xrt.formats.placement_file import Baseline, CandidateRecord, Lock, NodeRange
from xrt.graph import FrozenDict, Function
from xrt.graph.device_names import normalize_device
from xrt.partition.device_map import DeviceMap
from xrt.partition.explicit import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.placement.request import unwrap
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.partition import ClusteringOptions, Plan
    from xrt.placement.result import CandidateComparison, CandidateResult

__all__ = [
    "DEVICE_OF",
    "create_lock",
    "list_candidate_records",
    "list_mismatches",
    "list_node_ranges",
    "make_candidate_record",
    "plan_from_lock",
    "read_shapes",
]

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
    function: Function,
    engines: Sequence[GraphCompiler],
    context: CompileContext,
    options: ClusteringOptions,
    *,
    gate: Baseline | None = None,
    source: Mapping[str, str] | None = None,
    values: Mapping[str, str] = FrozenDict(),
    devices: Mapping[str, str] = FrozenDict(),
    now: datetime | None = None,
) -> Lock:
    """Return the lock of a plan of that Function. ``source`` says where the model came from, for who checks the lock later, and
    ``values`` in which files the inputs were that are not random.

    ``devices`` says by spec where engines run that run elsewhere than the context says.
    """
    used = _of_those(devices, (launch.engine for launch in plan.launches))
    return Lock(
        __version__,
        (now or datetime.now(UTC)).strftime("%Y-%m-%d"),
        {**_facts_of_model(function), **(source or {})},
        _inputs(function),
        {engine.spec: engine.version() for engine in unwrap(engines)},
        _machine(context, used),
        _options(context, options, used),
        list_node_ranges(plan, function),
        list_candidate_records(race)[:KEPT],
        gate,
        values,
    )


def read_shapes(lock: Lock, function: Function) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the Function's inputs that the lock was made for, as far as it tells them."""
    told = {value.name: _SHAPED.fullmatch(lock.inputs.get(value.name[:LONGEST], "")) for value in function.inputs}
    return {name: tuple(map(int, filter(None, match[1].split(",")))) for name, match in told.items() if match}


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


def list_candidate_records(race: CandidateComparison) -> tuple[CandidateRecord, ...]:
    """Return how each contender came off."""
    return tuple(make_candidate_record(one, is_baseline=number == race.baseline) for number, one in enumerate(race.contenders))


def make_candidate_record(contender: CandidateResult, *, is_baseline: bool) -> CandidateRecord:
    """Return how a contender came off, as plain facts."""
    figures = {name: getattr(contender, name) for name in ("seconds", "low", "high", "ratio", "ratio_low", "ratio_high")}
    return CandidateRecord(contender.title, contender.verdict, is_baseline, **figures, note=contender.note[:1000])


# ---------------------------------------------------------------------- from a lock to a plan


def plan_from_lock(
    runs: Sequence[NodeRange],
    function: Function,
    engines: Sequence[GraphCompiler],
    context: CompileContext,
    implicit: str | None = None,
    devices: Mapping[str, str] = FrozenDict(),
) -> Plan:
    """Return the plan that the runs are of; raises LockError where they are of no plan of that Function on those engines."""
    homes: dict[str, str] = {}
    groups: dict[str, int] = {}
    for run in runs:
        for name in _names(run, function):
            if name in homes:
                raise LockError(f"the lock places node {name!r} twice")
            homes[name], groups[name] = run.engine, run.region
    if len(homes) < len(function.nodes):
        left = next(node.name for node in function.nodes if node.name not in homes)
        raise LockError(f"the lock places {len(homes)} of {len(function.nodes)} nodes, and not {left!r}")
    try:
        return plan_from_assignment(
            function, engines, homes, groups=groups, implicit=implicit, device=DeviceMap(context.device, devices)
        )
    except PlanError as error:
        raise LockError(f"the lock holds no plan any more: {error}") from error


def _names(run: NodeRange, function: Function) -> Iterator[str]:
    if run.at + run.nodes > len(function.nodes):
        raise LockError(
            f"the lock places nodes up to number {run.at + run.nodes} of the model, which has {len(function.nodes)} of them"
        )
    return (node.name for node in function.nodes[run.at : run.at + run.nodes])


# ---------------------------------------------------------------------- what differs


def list_mismatches(
    lock: Lock,
    function: Function,
    engines: Sequence[GraphCompiler],
    context: CompileContext,
    options: ClusteringOptions | str,
    *,
    with_gate: bool = False,
    devices: Mapping[str, str] = FrozenDict(),
) -> tuple[str, ...]:
    """Return in which ways a lock was made for something else, each as a clause; empty where it holds.

    Of the engines those count that the plan uses, and ``with_gate`` those of the gate's. ``options`` may be the text of some.
    """
    if told := tuple(_of_model(lock, function)):
        return told  # of another model nothing else is of interest
    runs = [*lock.plan, *(lock.gate.runs if lock.gate and with_gate else ())]
    found = [*_of_engines(lock, engines, (run.engine for run in runs))]
    used = _of_those(devices, (run.engine for run in lock.plan))
    found += _of_facts(lock.machine, _machine(context, used))
    return (*found, *_of_facts(lock.options, _options(context, options, used)))


def _of_model(lock: Lock, function: Function) -> Iterator[str]:
    mine = _facts_of_model(function)
    if lock.model.get("fingerprint") == mine["fingerprint"]:
        return
    yield from _of_facts(_called(lock.inputs), _called(_inputs(function)))
    yield from _of_facts(_counted(lock.model), _counted(mine))
    was, is_ = lock.model.get("fingerprint", "not told"), mine["fingerprint"]
    yield f"the model {lock.model.get('name', '')!r} had fingerprint {was[:SHOWN]}, and {mine['name']!r} has {is_[:SHOWN]}"


def _called(inputs: Mapping[str, str]) -> dict[str, str]:
    return {f"input {name}": type_ for name, type_ in inputs.items()}


def _counted(model: Mapping[str, str]) -> dict[str, str]:
    return {"the number of nodes": model.get("nodes", "not told")}


def _of_engines(lock: Lock, engines: Sequence[GraphCompiler], used: Iterable[str]) -> Iterator[str]:
    by_spec = {engine.spec: engine for engine in unwrap(engines)}
    for spec in dict.fromkeys(used):
        if spec not in by_spec:
            yield f"engine {spec!r}, which has a part of the plan, is not in the list of engines or not ready"
        elif (was := lock.engines.get(spec, "not told")) != (now := by_spec[spec].version()):
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


def _of_those(devices: Mapping[str, str], specs: Iterable[str]) -> dict[str, str]:
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


def _options(context: CompileContext, options: ClusteringOptions | str, devices: Mapping[str, str]) -> dict[str, str]:
    execution = {name: str(value) for name, value in context.options.unusual().items()}
    own = {"precision": context.options.precision, "device": context.device, "threads": str(context.threads)}
    elsewhere = {f"{DEVICE_OF}{spec}": name for spec, name in sorted(devices.items())}
    return {**own, **elsewhere, **execution, "clustering": str(options)}
