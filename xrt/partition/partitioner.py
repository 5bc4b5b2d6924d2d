"""The way from a Function to a Plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from xrt.errors import OptionError, did_you_mean
from xrt.graph import FrozenDict, Function
from xrt.graph.device_names import normalize_device
from xrt.graph.gc_pause import pause_gc
from xrt.partition.clustering.cluster import Clustering, cluster
from xrt.partition.device_map import DeviceMap, NodeDevices
from xrt.partition.eligible_engines import EligibleEngines, Refused, check_all_taken
from xrt.partition.fold import fold
from xrt.partition.options import ClusteringOptions
from xrt.partition.plan import Plan, Reason
from xrt.partition.update_placement import place_updates

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.partition.support_matrix import SupportMatrix

__all__ = ["partition"]


def partition(
    function: Function,
    engines: Sequence[GraphCompiler],
    options: ClusteringOptions = ClusteringOptions(),
    *,
    strict: bool = False,
    implicit: str | None = None,
    refused: Sequence[Refused] = (),
    device: str = "cpu",
    devices: Mapping[str, str] = FrozenDict(),
    capability: SupportMatrix | None = None,
) -> Plan:
    """Return the Plan: each node on the first engine that takes it, unless a pin, a refusal or `minimum_nodes` forbids.

    ``engines`` stand by priority. ``implicit`` is the spec of the one among them that the user did not name, for the
    Plan to tell; ``strict`` says that there is none. ``refused`` holds (node, engine spec, reason) triples: what engines
    declined at compile after an earlier Plan. ``device`` is where nodes run that name no device, but for those of the engines
    that ``devices`` names by spec. No device is touched. ``capability`` has the engines' answers, for who knows them already.

    Raises OptionError for an engine listed twice, or one that a pin, ``implicit`` or ``refused`` names and the list does
    not have; PlanError when a pin cannot be kept, or no engine takes a node. Linear in nodes and edges.
    """
    names = [(engine.name, engine.spec) for engine in engines]
    check_engines([spec for _, spec in names], implicit)
    options.check_pins(names)
    with pause_gc(len(function.nodes)):
        homes = DeviceMap(device, devices)
        where = [homes.of(spec) for _, spec in names]
        choices = EligibleEngines.of(function, engines, options.pins, refused, where, capability)
        choices = place_updates(function, engines, choices, where)
        candidates = choices.candidates()
        check_all_taken(function, choices, candidates, options.pins, strict)
        found = cluster(function, candidates, options, NodeDevices.of(function, engines, homes).devices)
        folded = fold(function, found.clusters, names)
        reasons = tuple(_reasons(function, choices, found, options))
        return Plan(folded, choices.engines, reasons, options, implicit, normalize_device(device))


def check_engines(specs: Sequence[str], implicit: str | None) -> None:
    if not specs:
        raise OptionError("the list of engines is empty; list at least one")
    twice = next((spec for spec in specs if specs.count(spec) > 1), None)
    if twice is not None:
        raise OptionError(f"engine {twice!r} stands twice in the list {', '.join(specs)}; list each once")
    if implicit is not None and implicit not in specs:
        raise OptionError(
            f"implicit={implicit!r} is not in the list of engines: {', '.join(specs)}.{did_you_mean(implicit, specs)}"
        )


def _reasons(function: Function, choices: EligibleEngines, found: Clustering, options: ClusteringOptions) -> Iterator[Reason]:
    """Yield, for each node in order, why each engine before its own does not have it."""
    home = [0] * len(function.nodes)
    for one in found.clusters:
        for number in one.nodes:
            home[number] = one.engine
    for number, (node, engine) in enumerate(zip(function.nodes, home, strict=True)):
        for earlier in range(engine):
            text = choices.reason(number, earlier) or _too_small(found.dissolved[number, earlier], options.minimum_nodes)
            yield Reason(node.name, node.op, choices.engines[earlier], text, choices.updating_engines.get((number, earlier), ""))


def _too_small(size: int, least: int) -> str:
    return f"its cluster of {size} node{'s' * (size != 1)} is smaller than minimum_nodes={least}"
