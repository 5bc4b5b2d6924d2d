"""Reports on a program: its plan, with the reason for each node's engine; its memory; and a comparison of its results with the
reference engine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Constant, Function, TensorType
from xrt.graph.constants import is_mapped
from xrt.partition.plan import MIN_GROUP_SIZE, group_by, group_reasons, list_some
from xrt.placement.result import is_about_engine
from xrt.runtime import Program, to_host
from xrt.runtime.inputs import copy_values
from xrt.verify.deviations import list_deviations

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler, MemoryUse
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.module.module import XRTModule
    from xrt.partition import Launch, Plan, Reason
    from xrt.placement import CostReport
    from xrt.placement.engine_list import EngineList
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.regions import Progress

SPECIAL_VALUES_PREFIX = "deviates on special values:"


@dataclass(frozen=True, slots=True)
class RegionReport:
    name: str
    engine: str
    nodes: int
    operators: tuple[tuple[str, int], ...]
    inputs: tuple[str, ...]
    """Names and types of the values that the region reads from other regions or the caller."""
    outputs: tuple[str, ...]
    weights: int
    remarks: tuple[str, ...]
    """Remarks of the engine on the region, of a bundle on its compiled form, and of `check=` if it is not checked."""
    device: str = ""
    """The device of the region; empty if it is the module's device."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a plan. Prints as text; `to_dict` converts it to plain data."""

    engines: tuple[str, ...]
    implicit: str | None
    """The reference engine, if it was appended to the caller's list; else None."""
    regions: tuple[RegionReport, ...]
    threads: int
    reasons: tuple[Reason, ...]
    idle_pins: tuple[str, ...] = ()
    """Pins without effect: all their nodes were folded, or no output needs them."""
    placement: tuple[str, ...] = ()
    """Lines about the measurements that chose the plan, and about sizes."""
    account: CostReport | None = None
    device: str = "cpu"
    copies: tuple[str, ...] = ()
    bytes_copied: int = 0
    graph: str = ""
    """A sentence that says whether a requested CUDA graph was captured; empty if not requested, or before the compile."""
    checks: str = ""
    """A sentence that says which calls are checked against the reference, and how many were; empty without ``check=``."""
    updates: tuple[str, ...] = ()
    """Inputs that a call updates, each with "in place" or the reason for a copy; empty before the compile."""
    precision: PrecisionRecord | None = None
    """Precision of the plan and its measured error; None without an error budget."""
    left_out: tuple[str, ...] = ()
    plan: Plan | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        # These fields have a documented data format, which `asdict` would not produce.
        parts = {name: part and part.to_dict() for name, part in (("account", self.account), ("precision", self.precision))}
        data = asdict(replace(self, plan=None, account=None, precision=None)) | parts
        del data["plan"]
        return data

    def _repr_html_(self) -> str:
        from xrt.html.views import render_cell

        return render_cell("explanation.html", is_page=False, **_describe_page(self))

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, deviations: bool = True, left_out: bool = False) -> str:
        """Format as text; ``deviations`` adds remarks on special values, ``left_out`` adds the engines that "auto" leaves out."""
        return "\n".join((*self._describe_regions(deviations), *self._describe_rest(left_out)))

    @property
    def engine_names(self) -> str:
        return ", ".join(f"{spec} (fallback)" if spec == self.implicit else spec for spec in self.engines)

    def _describe_regions(self, deviations: bool) -> Iterator[str]:
        where = f"; device {self.device}" if self.device != "cpu" else ""
        yield f"engines: {self.engine_names}; {self.threads} thread{'' if self.threads == 1 else 's'} for all together{where}"
        remarks = {region.name: region.remarks for region in self.regions}
        if not deviations:
            for name, texts in remarks.items():
                remarks[name] = tuple(text for text in texts if not text.startswith(SPECIAL_VALUES_PREFIX))
        regions_by_remark = defaultdict[tuple[str, str], list[str]](list)
        for region in self.regions:
            for remark in remarks[region.name]:
                regions_by_remark[region.engine, remark].append(region.name)
        # A remark on many regions is printed once, after the regions.
        shared = {key: names for key, names in regions_by_remark.items() if len(names) >= MIN_GROUP_SIZE}
        for first, *others in group_by(self.regions, lambda r: (r.engine, r.device, r.nodes, r.operators, remarks[r.name])):
            device = f" ({first.device})" if first.device else ""
            operators = ", ".join(f"{count} {op}" if count > 1 else op for op, count in first.operators)
            nodes = "1 node" if first.nodes == 1 else f"{first.nodes} nodes"
            yield f"{first.name}  on {first.engine}{device}: {nodes} ({operators})"
            yield f"  in:  {', '.join(first.inputs) or 'nothing'}"
            yield f"  out: {', '.join(first.outputs)}"
            yield from (f"  {remark}" for remark in remarks[first.name] if (first.engine, remark) not in shared)
            if others:  # which are equal to the first, and only listed
                yield f"{list_some([r.name for r in others])}  on {first.engine}: the same operators as {first.name}"
        for (engine, remark), names in shared.items():
            yield f"on {engine}, {len(names)} regions: {remark} ({list_some(names)})"

    def _describe_rest(self, left_out: bool) -> Iterator[str]:
        if not self.regions:
            yield "no regions: the outputs are inputs or constants"
        if self.copies:
            yield f"copies between devices: {len(self.copies)} ({self.bytes_copied:,} bytes)"
            yield from (f"  {copy}" for copy in self.copies)
        if self.graph:
            yield self.graph
        yield from (f"updates {update}" for update in self.updates)
        if self.reasons:
            yield f"not on the first engine that could be asked ({len(self.reasons)}; node by node in .reasons):"
            for reason_group in group_reasons(reason for reason in self.reasons if not is_about_engine(reason)):
                if len(reason_group.reasons) > 1:
                    yield f"  {reason_group.summary} ({reason_group.nodes})"
                    continue
                (reason,) = reason_group.reasons
                yield f"  {reason.node} ({reason.op}) not on {', '.join(reason_group.engines)}: {reason.text}"
            for reason_group in group_reasons((reason for reason in self.reasons if is_about_engine(reason)), min_size=1):
                yield f"  {reason_group.summary}"
        for pin in self.idle_pins:
            yield f"pin {pin} has no effect: its nodes were computed ahead of time, or no output needs them"
        yield from self.placement
        if left_out:
            yield from self.left_out
        if self.account is not None:
            yield from str(self.account).splitlines()
        if self.checks:
            yield self.checks


def explain(plan: Plan, engines: EngineList, *, remarks: Sequence[Mapping[str, str]] = (), **details: Any) -> Explanation:
    """Explain a plan. ``remarks`` has dicts from region name to remark; ``details`` are further fields of the Explanation."""
    by_spec = engines.by_spec
    notes = {launch.name: [by_name[launch.name] for by_name in remarks if launch.name in by_name] for launch in plan.launches}
    return Explanation(
        engines=plan.engines,
        implicit=engines.implicit,
        regions=tuple(_report_region(launch, by_spec.get(launch.engine), notes[launch.name]) for launch in plan.launches),
        threads=engines.context.threads,
        reasons=plan.reasons,
        device=plan.device,
        copies=tuple(map(str, plan.copies)),
        bytes_copied=sum(copy.nbytes or 0 for copy in plan.copies),
        plan=plan,
        **details,
    )


def explain_module(module: XRTModule) -> Explanation:
    build, checks, engines = module.specialization, module.checks, module.programs.engines
    tuned, program = build.tuned, build.compiled
    # With "auto", the engines that were left out are printed only on request.
    notes = [line for line in engines.left_out if not (engines.is_auto and line.startswith("engine "))]
    return explain(
        build.plan,
        build.engines,
        remarks=[build.remarks, checks.list_remarks(build.plan)],
        idle_pins=tuple(map(str, build.idle_pins)),
        placement=(*str(tuned or "").splitlines(), *notes, *module.sizes.remarks),
        account=None if tuned is None else module.programs.placer.make_cost_report(build.plan, tuned, build.function),
        checks=str(checks),
        graph=program.graph_remark if program else "",
        updates=tuple(map(str, program.updates)) if program else (),
        precision=tuned.precision if tuned else None,
        left_out=engines.left_out if engines.is_auto else (),
    )


def _report_region(launch: Launch, engine: GraphCompiler | None, notes: Sequence[str]) -> RegionReport:
    """Describe a region. ``engine`` is None if the module does not have the engine of the launch."""
    function = launch.function
    if engine is None:
        remarks = [f"engine {launch.engine!r} is not an engine of this module, whose first call plans again"]
    else:
        remarks = [*engine.remarks(function)]
        kinds = list_deviations(engine.implementation, function)
        deviations = "; ".join(f"{kind} in {', '.join(operators)}" if operators else kind for kind, operators in kinds)
        if deviations:
            remarks.append(f"{SPECIAL_VALUES_PREFIX} {deviations}")
    return RegionReport(
        name=launch.name,
        engine=launch.engine,
        nodes=len(function.nodes),
        operators=tuple(Counter(node.op for node in function.nodes).most_common()),
        inputs=tuple(map(str, function.inputs)),
        outputs=tuple(map(str, function.outputs)),
        weights=sum({id(constant.array): constant.nbytes for constant in function.constants.values()}.values()),
        remarks=(*remarks, *notes),
        device=launch.device,
    )


def render_explanation_page(explanation: Explanation, model: str) -> str:
    from xrt.html.views import render_page

    return render_page("explanation.html", f"Where the nodes of {model} are", is_page=True, **_describe_page(explanation))


def _describe_page(report: Explanation) -> dict[str, Any]:
    from xrt.html.views import format_bytes, format_count
    from xrt.partition.plan import describe_plan
    from xrt.placement.report import describe_costs, describe_errors

    facts = {
        "engines": report.engine_names,
        "threads": f"{format_count(report.threads, 'thread')} for all together",
        "device": report.device if report.device != "cpu" else None,
        "copies": f"{len(report.copies)} between devices, {format_bytes(report.bytes_copied)}" if report.copies else None,
        "graph": report.graph or None,
        "checks": report.checks or None,
        "idle pins": ", ".join(report.idle_pins) or None,
    }
    remarks = [(region.name, region.engine, remark) for region in report.regions for remark in region.remarks]
    tables = describe_plan(report.plan, report.reasons) | describe_costs(report.account) | describe_errors(report.precision)
    return {"explanation": report, "facts": facts, "remarks": remarks, **tables}


# ---------------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True)
class RegionMemory:
    name: str
    engine: str
    weights: int
    """Bytes of the constants that the region reads. Several regions may share a constant."""
    uses: tuple[MemoryUse, ...] | None
    """Memory that the engine reports, without weights; None if it reports nothing, or before the compile."""
    same_as: str = ""
    """Name of an equal earlier region, with which this region shares an executable; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a program in bytes. Prints as a table; `to_dict` converts it to plain data."""

    weights: int
    mapped: int
    """Bytes of ``weights`` and ``unused`` in memory-mapped files. The OS loads these pages on demand and may drop them."""
    unused: int
    """Bytes of the model's constants that are in memory, but no region reads them after constant folding."""
    crossing: int
    unknown: int
    arena: int | None
    """Bytes of the arena for values between regions, one per concurrent call; None before the compile."""
    regions: tuple[RegionMemory, ...]

    @property
    def is_compiled(self) -> bool:
        return self.arena is not None

    def _sum_uses(self, is_included: Callable[[MemoryUse], bool]) -> int:
        uses = (use for region in self.regions if not region.same_as for use in region.uses or ())
        return sum(use.nbytes or 0 for use in uses if is_included(use))

    @property
    def held(self) -> int:
        """Bytes in use between calls. Engines may not report all of their memory."""
        return self.weights + self.unused + self._sum_uses(lambda use: not use.per_call)

    @property
    def shared(self) -> int:
        """Bytes of ``held`` that all processes of the host share, because they are in memory-mapped files."""
        return self.mapped + self._sum_uses(lambda use: use.shared)

    @property
    def private(self) -> int:
        return self.held - self.shared

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "held": self.held, "shared": self.shared, "private": self.private}

    def _repr_html_(self) -> str:
        from xrt.html.views import render_cell  # only for notebooks

        rows = [(name.strip(), size, why) for name, size, why in self._list_rows()]
        table = ("Bytes of one program", {"what": "", "size": "number", "": ""}, rows)
        return render_cell("summary.html", title="Memory", facts={}, tables=[table])

    def __str__(self) -> str:
        return "\n".join(f"{name:<28}{size:>11}  {why}".rstrip() for name, size, why in self._list_rows())

    def _list_rows(self) -> Iterator[tuple[str, str, str]]:
        yield "weights", _format_size(self.weights), f"held once; {_format_size(self.mapped)} of all constants in mapped files"
        if self.unused:
            yield "  unused", _format_size(self.unused), "constants of the model that were folded into others"
        # Before the compile, the arena is not planned yet.
        storage = "no arena; values, each in separate memory" if self.is_compiled else "values, each in separate memory"
        if self.arena:
            storage = f"the arena, for values of {_format_size(self.crossing)}"
        unknown = f"; {self.unknown} more of sizes known only at run time" if self.unknown else ""
        yield "between regions", _format_size(self.arena or self.crossing), f"per call: {storage}{unknown}"
        seen: set[str] = set()  # remarks that were printed
        for region in self.regions:
            yield f"{region.name} on {region.engine}", _format_size(region.weights), "of the weights"
            uses = [
                (use.name, _format_size(use.nbytes), f"per call: {use.why}" if use.per_call else use.why)
                for use in region.uses or ()
            ]
            if region.same_as:
                uses = [("executable", "0 B", f"that of {region.same_as}, which is equal")]
            elif region.uses is None and self.is_compiled:
                uses = [("memory of the engine", "?", "the engine reports none")]
            for name, size, why in uses:
                yield f"  {name}", size, "as above" if why in seen else why
                seen.add(why)
        hint = "" if self.is_compiled else "before the compile; m.compile() adds what the engines report"
        yield "held between calls", _format_size(self.held), hint
        if self.shared:
            why = "in mapped files: processes have the same pages, and the system may drop them"
            yield "  shared", _format_size(self.shared), why
            yield "  private", _format_size(self.private), "of this process alone"


def measure_memory(plan: Plan, original: Function, program: Program | None) -> Memory:
    """Measure the memory of a plan. ``original`` is the model before optimization; ``program`` is None before the compile."""
    used = _collect_constants([plan.function, *(launch.function for launch in plan.launches)])
    # The original model has all its constants in memory, also those that constant folding has replaced.
    everything = used | _collect_constants([original])
    types = [value.type for launch in plan.launches for value in launch.function.outputs]
    sizes = [type_.nbytes if isinstance(type_, TensorType) else None for type_ in types]
    regions, first_regions = [], dict[int, str]()
    for launch, executable in zip_longest(plan.launches, program.executables if program else ()):
        uses, same_as = None, ""
        if executable is not None:
            uses = executable.memory()
            # Equal regions share an executable. Its memory counts for the first of these regions.
            first = first_regions.setdefault(id(executable), launch.name)
            same_as = first if first != launch.name else ""
        nbytes = _count_bytes(_collect_constants([launch.function]))
        regions.append(RegionMemory(launch.name, launch.engine, nbytes, None if uses is None else tuple(uses), same_as))
    return Memory(
        weights=_count_bytes(used),
        mapped=sum(constant.nbytes for constant in everything.values() if is_mapped(constant.array)),
        unused=_count_bytes(everything) - _count_bytes(used),
        crossing=sum(filter(None, sizes)),
        unknown=sizes.count(None),
        arena=program.arena.nbytes if program else None,
        regions=tuple(regions),
    )


def _collect_constants(functions: Iterable[Function]) -> dict[object, Constant]:
    """Collect constants by address and size in bytes, so that constants over the same memory count once."""
    constants = chain.from_iterable(function.walk_constants() for function in functions)
    return {(constant.array.ctypes.data, constant.array.nbytes): constant for constant in constants}


def _count_bytes(constants: Mapping[object, Constant]) -> int:
    return sum(constant.nbytes for constant in constants.values())


def _format_size(nbytes: int | None) -> str:
    if nbytes is None:
        return "?"
    if nbytes < 1000:
        return f"{nbytes} B"
    return f"{nbytes / 1e3:.1f} kB" if nbytes < 1e6 else f"{nbytes / 1e6:.1f} MB"


# ---------------------------------------------------------------------- comparison with the reference engine


def verify(
    module: XRTModule, args: Sequence[Any], kwargs: Mapping[str, Any], *, inner: bool, progress: Progress | None
) -> Verification:
    """Compare every region with the reference engine, as `XRTModule.verify` describes."""
    from xrt.verify.regions import ignore_progress, verify as verify_plan

    values = module.programs.check_inputs(args, kwargs)
    if module.programs.specialize(values).function.aliases:  # the model updates its inputs
        # The call below would change the caller's arrays, and the comparison needs their values before the call.
        args, kwargs = copy_values(module.programs.check_inputs(args, kwargs, pads=False)[: len(module.source.inputs)]), {}
    module(*args, **kwargs)
    build, inputs = module.programs.specialize(values), to_host(values)
    engines, context, progress = build.engines.by_spec, build.engines.context, progress or ignore_progress
    return verify_plan(build.get_full_function(), build.plan, engines, inputs, evaluate, context, inner=inner, progress=progress)


def bisect(
    module: XRTModule, args: Sequence[Any], kwargs: Mapping[str, Any], *, progress: Progress | None
) -> FailingSubgraph | None:
    """Find the smallest part of a region that differs from the reference engine, as `XRTModule.bisect` describes."""
    from xrt.verify.regions import bisect_plan, ignore_progress

    values = module.programs.check_inputs(args, kwargs)
    build, progress = module.programs.specialize(values), progress or ignore_progress
    return bisect_plan(build.plan, build.engines.by_spec, to_host(values), evaluate, build.engines.context, progress=progress)
