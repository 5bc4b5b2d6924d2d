"""Explain a Plan in text: its regions in order, their inputs and outputs, and why each node is on its engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from xrt.engines.contract.graph_compiler import list_deviations
from xrt.partition.plan import GROUPED, ReasonGroup, group, group_reasons, list_some
from xrt.placement.result import is_of_engine

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.graph import Function
    from xrt.module.module import XRTModule
    from xrt.partition import Launch, Plan, Reason
    from xrt.placement import CostReport
    from xrt.placement.engine_list import EngineList

SPECIAL = "deviates on special values:"
"""Prefix of remarks about NaN, infinities and similar values."""


@dataclass(frozen=True, slots=True)
class RegionReport:
    """One launch of a plan."""

    name: str
    engine: str
    nodes: int
    operators: tuple[tuple[str, int], ...]
    """(operator, count) pairs, most frequent first."""
    inputs: tuple[str, ...]
    """Values that the region reads from other regions or the caller, as names with types; constants are not among them."""
    outputs: tuple[str, ...]
    weights: int
    """Bytes of the region's constants."""
    remarks: tuple[str, ...]
    """Remarks of the engine about the region, and of a bundle about its compiled form."""
    device: str = ""
    """Where it runs; empty for the device of the module's inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a plan. Prints as text; `to_dict` returns it as plain data."""

    engines: tuple[str, ...]
    implicit: str | None
    """The engine added at the end of the list because the list does not name it; None if there is none."""
    regions: tuple[RegionReport, ...]
    threads: int
    """Thread budget shared by all engines."""
    reasons: tuple[Reason, ...]
    """For each node that is not on the first engine, the reason."""
    idle_pins: tuple[str, ...] = ()
    """Pins without effect: all their nodes were folded or are not needed by any output."""
    placement: tuple[str, ...] = ()
    """How the plan was chosen; empty unless it was placed by measurement."""
    account: CostReport | None = None
    """Cost of each part of the plan, and missing operators that would save time; None if the plan was not measured."""
    device: str = "cpu"
    """Device of the module's inputs and outputs."""
    copies: tuple[str, ...] = ()
    """Values copied between devices, each once per direction."""
    bytes_copied: int = 0
    """Total bytes of ``copies`` whose sizes are known."""
    graph: str = ""
    """Whether a requested device graph (CUDA graph) was captured; empty if not requested or not compiled yet."""
    checks: str = ""
    """Which calls are checked against the reference, and how many were; empty without checks."""
    updates: tuple[str, ...] = ()
    """Inputs that a call updates, each with "in place" or why it is copied; empty before the compile."""

    precision: PrecisionRecord | None = None
    """Precision of the plan and its measured error; None without an error budget."""
    left_out: tuple[str, ...] = ()
    """Engines that ``engine="auto"`` does not consider on this machine, each with the reason."""
    plan: Plan | None = field(default=None, compare=False, repr=False)
    """The explained plan, for drawing; not part of the data or the text."""

    def to_dict(self) -> dict[str, Any]:
        """The explanation as dicts, lists and strings."""
        own = {"account": self.account.to_dict() if self.account else None}
        own["precision"] = self.precision.to_dict() if self.precision else None
        data = asdict(replace(self, plan=None, account=None, precision=None)) | own
        del data["plan"]
        return data

    def _repr_html_(self) -> str:
        """Charts and tables for a notebook."""
        return render_explanation(self)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, deviations: bool = True, left_out: bool = False) -> str:
        """Format as text; ``deviations`` includes remarks on special values, ``left_out`` the engines that "auto" omits."""
        if not deviations:
            plain = (replace(r, remarks=tuple(x for x in r.remarks if not x.startswith(SPECIAL))) for r in self.regions)
            return replace(self, regions=tuple(plain)).describe(left_out=left_out)
        threads = f"{self.threads} thread{'s' * (self.threads != 1)} for all together"
        where = f"; device {self.device}" if self.device != "cpu" else ""
        lines = [f"engines: {', '.join(self._engine(e) for e in self.engines)}; {threads}{where}"]
        shared = _shared_remarks(self.regions)
        for alike in group(self.regions, lambda r: (r.engine, r.device, r.nodes, r.operators, r.remarks)):
            lines += _region_lines(alike[0], shared)
            if alike[1:]:
                names = list_some([region.name for region in alike[1:]])
                lines.append(f"{names}  on {alike[0].engine}: the same operators as {alike[0].name}")
        lines += [
            f"on {engine}, {len(names)} regions: {remark} ({list_some(names)})" for (engine, remark), names in shared.items()
        ]
        if not self.regions:
            lines.append("no regions: the outputs are inputs or constants")
        if self.copies:
            lines.append(f"copies between devices: {len(self.copies)} ({self.bytes_copied:,} bytes)")
            lines += [f"  {copy}" for copy in self.copies]
        lines += [self.graph] if self.graph else []
        lines += [f"updates {update}" for update in self.updates]
        if self.reasons:
            lines.append(f"not on the first engine that could be asked ({len(self.reasons)}; node by node in .reasons):")
            lines += _lines_of_nodes(group_reasons(reason for reason in self.reasons if not is_of_engine(reason)))
            of_engines = group_reasons((reason for reason in self.reasons if is_of_engine(reason)), least=1)
            lines += [f"  {one.summary}" for one in of_engines]
        lines += [
            f"pin {pin} holds nothing: its nodes were computed ahead of time, or no output needs them" for pin in self.idle_pins
        ]
        lines += self.placement
        lines += self.left_out if left_out else ()
        lines += str(self.account or "").splitlines()
        return "\n".join([*lines, *([self.checks] if self.checks else [])])

    def _engine(self, spec: str) -> str:
        return f"{spec} (fallback)" if spec == self.implicit else spec


def _lines_of_nodes(groups: Sequence[ReasonGroup]) -> Iterator[str]:
    """Yield one line per group of nodes that share the reason why they are not on an engine."""
    for one in groups:
        first = one.reasons[0]
        if len(one.reasons) > 1:
            yield f"  {one.summary} ({one.nodes})"
        else:
            yield f"  {first.node} ({first.op}) not on {', '.join(one.engines)}: {first.text}"


def _shared_remarks(regions: Sequence[RegionReport]) -> dict[tuple[str, str], list[str]]:
    """Collect remarks shared by several regions of an engine: (engine, remark) to region names."""
    found: dict[tuple[str, str], list[str]] = {}
    for region in regions:
        for remark in region.remarks:
            found.setdefault((region.engine, remark), []).append(region.name)
    return {key: names for key, names in found.items() if len(names) >= GROUPED}


def _region_lines(region: RegionReport, shared: Container[tuple[str, str]]) -> list[str]:
    where = f" ({region.device})" if region.device else ""
    operators = ", ".join(f"{count} {op}" if count > 1 else op for op, count in region.operators)
    lines = [
        f"{region.name}  on {region.engine}{where}: {region.nodes} node{'s' * (region.nodes != 1)} ({operators})",
        f"  in:  {', '.join(region.inputs) or 'nothing'}",
        f"  out: {', '.join(region.outputs)}",
    ]
    return lines + [f"  {remark}" for remark in region.remarks if (region.engine, remark) not in shared]


def explain(plan: Plan, engines: EngineList, *, remarks: Sequence[Mapping[str, str]] = (), **details: Any) -> Explanation:
    """Explain a plan. ``remarks`` are added by region name; ``details`` are other fields of the Explanation."""
    more = [[by_name[x.name] for by_name in remarks if x.name in by_name] for x in plan.launches]
    by_spec = engines.by_spec
    return Explanation(
        engines=plan.engines,
        implicit=engines.implicit,
        regions=tuple(_region(x, by_spec.get(x.engine), lines) for x, lines in zip(plan.launches, more, strict=True)),
        threads=engines.context.threads,
        reasons=plan.reasons,
        device=plan.device,
        copies=tuple(map(str, plan.copies)),
        bytes_copied=sum(copy.nbytes or 0 for copy in plan.copies),
        plan=plan,
        **details,
    )


def explain_module(module: XRTModule) -> Explanation:
    """Explain the last signature of a module: see `XRTModule.explain`."""
    build, programs, checks = module.specialization, module.programs, module.checks
    engines = programs.engines
    left_out = engines.left_out if engines.is_auto else ()
    notes = [line for line in left_out if not line.startswith("engine ")] if engines.is_auto else engines.left_out
    return explain(
        build.plan,
        build.engines,
        remarks=[build.remarks, checks.remarks({x.name: x.function for x in build.plan.launches})],
        idle_pins=tuple(map(str, build.idle_pins)),
        placement=(*str(build.tuned or "").splitlines(), *notes, *module.sizes.remarks),
        account=programs.placer.make_cost_report(build.plan, build.tuned, build.function),
        checks=str(checks),
        graph=build.compiled.graph_remark if build.compiled else "",
        updates=tuple(map(str, build.compiled.updates)) if build.compiled else (),
        precision=build.tuned.precision if build.tuned else None,
        left_out=left_out,
    )


def _region(launch: Launch, engine: GraphCompiler | None, more: Sequence[str]) -> RegionReport:
    function = launch.function
    if engine is None:
        own: tuple[str, ...] = (f"engine {launch.engine!r} is not among this module's, which plans again at its first call",)
    else:
        own = (*engine.remarks(function), *_deviations(engine, function))
    return RegionReport(
        name=launch.name,
        engine=launch.engine,
        nodes=len(function.nodes),
        operators=tuple(Counter(node.op for node in function.nodes).most_common()),
        inputs=tuple(map(str, function.inputs)),
        outputs=tuple(map(str, function.outputs)),
        weights=sum({id(one.array): one.nbytes for one in function.constants.values()}.values()),
        remarks=(*own, *more),
        device=launch.device,
    )


def _deviations(engine: GraphCompiler, function: Function) -> Iterator[str]:
    found = [
        f"{kind} in {', '.join(operators)}" if operators else kind
        for kind, operators in list_deviations(engine.implementation, function)
    ]
    if found:
        yield f"{SPECIAL} {'; '.join(found)}"


def render_explanation(found: Explanation) -> str:
    """Render an Explanation as HTML for a notebook cell."""
    from xrt.html.views import render_cell

    return render_cell("explanation.html", is_page=False, **_describe(found))


def render_explanation_page(found: Explanation, model: str) -> str:
    """Render an Explanation as an HTML page; ``model`` is the model's name for the title."""
    from xrt.html.views import render_page

    return render_page("explanation.html", f"Where the nodes of {model} are", is_page=True, **_describe(found))


def _describe(found: Explanation) -> dict[str, Any]:
    from xrt.html.views import format_count, size
    from xrt.partition.plan import describe_plan
    from xrt.placement.report import describe_costs, describe_errors

    engines = [f"{spec} (fallback)" if spec == found.implicit else spec for spec in found.engines]
    facts = {
        "engines": ", ".join(engines),
        "threads": f"{format_count(found.threads, 'thread')} for all together",
        "device": found.device if found.device != "cpu" else None,
        "copies": f"{len(found.copies)} between devices, {size(found.bytes_copied)}" if found.copies else None,
        "graph": found.graph or None,
        "checks": found.checks or None,
        "idle pins": ", ".join(found.idle_pins) or None,
    }
    remarks = [(region.name, region.engine, remark) for region in found.regions for remark in region.remarks]
    plan = describe_plan(found.plan, found.reasons)
    return {
        "found": found,
        "facts": facts,
        "remarks": remarks,
        **plan,
        **describe_costs(found.account),
        **describe_errors(found.precision),
    }
