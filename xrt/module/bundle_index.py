"""The index of a bundle: what a load needs of the manifest, as text.

With it neither protobuf nor ONNX is imported and no node is read, unless a region must be compiled again, or a caller asks for
the plan's nodes and reasons. It is no second truth: what it leaves out is read from the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import BundleError, XRTError
from xrt.formats import bundle
from xrt.formats.program_record import OWN, StoredPlan, StoredWeight, dump_plan, dump_values, parse_plan, parse_values
from xrt.graph.function import Function
from xrt.module.stored_plans import defer_launch, is_deferrable, list_large_constants, store_launch
from xrt.partition.options import read_options
from xrt.partition.plan import Plan

if TYPE_CHECKING:
    from xrt.cache import Signature
    from xrt.cache.cost_store import CostStore
    from xrt.formats.bundle import BundleFile
    from xrt.formats.placement_file import ServingRecord
    from xrt.module.module import XRTModule
    from xrt.module.sizes import Shapes
    from xrt.precision.lowering import LoweringWithinBudget

__all__ = [
    "SECTION",
    "SERVING",
    "SHAPES",
    "defer_plan",
    "dump_shapes",
    "load_serving",
    "make_index",
    "read_index",
    "read_serving",
    "read_shapes",
    "store_serving",
]

SECTION, SHAPES = "index", "shapes"
_ASKED: Mapping[str, type] = {"writer": str, "device": str, "strict": bool, "fold_constants": bool, "model": str}
"""What of the manifest is one text or truth value."""


def make_index(manifest: Mapping[str, Any], plans: Sequence[Plan]) -> bytes | None:
    """Return the index for a manifest and the plans of its programs; None where a plan cannot do without its nodes."""
    if not all(is_deferrable(plan) for plan in plans):
        return None
    programs = [
        {
            "function": program["function"],
            "fetch": program["fetch"],
            "engines": plan.engines,
            "implicit": plan.implicit,
            "plan": dump_plan(_store(plan)),
            "regions": [_dump_region(region) for region in program["regions"]],
        }
        for program, plan in zip(manifest["programs"], plans, strict=True)
    ]
    facts = {
        "format": bundle.FORMAT,
        **{name: manifest[name] for name in (*_ASKED, "engines", "clustering", "execution")},
        "inputs": dump_values(manifest["inputs"]),
        "outputs": dump_values(manifest["outputs"]),
        "programs": programs,
    }
    return json.dumps(facts, separators=(",", ":")).encode()


def _store(plan: Plan) -> StoredPlan:
    launches = [
        store_launch(one, (StoredWeight(c.digest.hex(), OWN, 0, c.nbytes) for c in list_large_constants(one.function).values()))
        for one in plan.launches
    ]
    return StoredPlan(None, plan.function.inputs, plan.function.outputs, tuple(launches))


def _dump_region(region: Mapping[str, Any]) -> list[Any]:
    return [region["section"], [(one["name"], one["value"]) for one in region["ingredients"]], region["reason"]]


def read_index(file: BundleFile) -> dict[str, Any] | None:
    """Return the manifest with a StoredPlan in place of each plan.

    None where the bundle has no index, or one of another form: then the manifest is read. Raises BundleError for a damaged one.
    """
    data = file.find_section(f"{SECTION}{file.suffix}")
    if data is None:
        return None
    try:
        facts: Any = json.loads(bytes(data))
        return _parse(facts) if facts["format"] == bundle.FORMAT else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def dump_shapes(shapes: Shapes) -> bytes:
    """The section that has the option ``shapes`` of a module."""
    return json.dumps({"shapes": shapes if isinstance(shapes, str) else {"buckets": shapes.sizes}}, default=dict).encode()


def read_shapes(file: BundleFile) -> Shapes:
    """Read the option ``shapes`` of a module; raises BundleError for a damaged section."""
    data = file.find_section(f"{SHAPES}{file.suffix}")
    if data is None:
        return "auto"
    from xrt.module.sizes import Buckets, parse_shapes

    try:
        shapes = json.loads(bytes(data))["shapes"]
        return parse_shapes(Buckets(shapes["buckets"]) if isinstance(shapes, dict) else shapes)
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # an OptionError is a ValueError
        raise BundleError(f"{file.path}: section {SHAPES!r} cannot be read: {error}") from error


def _parse(facts: Any) -> dict[str, Any]:
    found = {name: _check(facts[name], kind) for name, kind in _ASKED.items()}
    found["engines"] = [{name: _check(one[name], str) for name in ("spec", "version")} for one in _check(facts["engines"], list)]
    for name in ("clustering", "execution"):
        found[name] = _check(facts[name], dict)
    read_options(found["clustering"])
    found |= {"inputs": parse_values(facts["inputs"]), "outputs": parse_values(facts["outputs"])}
    return {**found, "programs": tuple(_parse_program(one) for one in _check(facts["programs"], list))}


def _parse_program(facts: Any) -> dict[str, Any]:
    return {
        "function": _check(facts["function"], str),
        "fetch": _check_texts(facts["fetch"]),
        "engines": _check_texts(facts["engines"]),
        "implicit": None if facts["implicit"] is None else _check(facts["implicit"], str),
        "plan": parse_plan(facts["plan"], 0),
        "regions": tuple(_parse_region(*one) for one in _check(facts["regions"], list)),
    }


def _parse_region(section: Any, ingredients: Any, reason: Any) -> dict[str, Any]:
    pairs = [_check_texts(pair) for pair in _check(ingredients, list)]
    named = [{"name": name, "value": value} for name, value in pairs]
    return {"section": _check(section, str), "ingredients": named, "reason": _check(reason, str)}


def _check(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} is expected, not {type(value).__name__}")
    return value


def _check_texts(values: Any) -> tuple[str, ...]:
    return tuple(_check(one, str) for one in _check(values, list))


def defer_plan(file: BundleFile, facts: Mapping[str, Any], program: Mapping[str, Any], read: Callable[[], Plan]) -> Plan:
    """Return the plan of a program in the index; ``read`` returns the one of the manifest, which has its nodes and reasons."""
    stored: StoredPlan = program["plan"]
    nodes = tuple(
        defer_launch(launch, {bytes.fromhex(one.digest): partial(_read_weight, file, one) for one in launch.weights}, get)
        for number, launch in enumerate(stored.launches)
        for get in [partial(_read_region, read, number)]
    )
    function = Function(stored.inputs, stored.outputs, nodes)
    return Plan(function, program["engines"], (), read_options(facts["clustering"]), program["implicit"])


def _read_weight(file: BundleFile, weight: StoredWeight) -> Any:
    return np.frombuffer(file.read_weight(weight.digest), np.uint8)


def _read_region(read: Callable[[], Plan], number: int) -> Function:
    return read().launches[number].function


SERVING = "serving"
"""The section of a bundle; a version of XRT that does not know it ignores it."""


def _find_place(module: XRTModule, lower: LoweringWithinBudget | None) -> tuple[CostStore, Signature] | None:
    """Return the store, and the name in it; None where nothing can be kept.

    An error budget has names of its own, unless it is in a metric whose code is unknown: then nothing can.
    """
    from xrt.cache import DiskTier, Signature
    from xrt.cache.cost_store import CostStore
    from xrt.placement.records import make_decision_key

    programs = module.programs
    if not isinstance(programs.cache.disk, DiskTier) or programs.source.is_traced:
        return None
    store = CostStore.for_cache(programs.cache)
    request = programs.engines.make_request(programs.source.get_declared_function(), clustering=programs.settings.clustering)
    key = make_decision_key(request)
    terms = () if lower is None else lower.terms.ingredients
    if store is None or key is None or terms is None:
        return None
    return store, Signature((*key.ingredients, *terms, ("objective", "throughput")))


def load_serving(module: XRTModule) -> ServingRecord | None:
    """Return what an earlier search has chosen; None where none is known."""
    try:
        place = _find_place(module, module.programs.lowering)
    except XRTError:
        return None  # the model cannot be read, which a call says better
    document = place[0].decision(place[1]) if place else None
    return None if document is None else document.serving


def store_serving(module: XRTModule, record: ServingRecord, lower: LoweringWithinBudget | None = None) -> None:
    """Keep a choice for modules with these engines, this thread budget and this error budget."""
    from xrt.formats.placement_file import PlacementFile

    if place := _find_place(module, lower):
        place[0].store_decision(place[1], PlacementFile(serving=record))


def read_serving(file: BundleFile) -> ServingRecord | None:
    """Return what a bundle holds; None where its module was not tuned. Raises BundleError where it is damaged."""
    from xrt.formats.placement_file import parse_serving

    data = file.find_section(f"{SERVING}{file.suffix}")
    try:
        return None if data is None else parse_serving(bytes(data))
    except BundleError as error:
        raise BundleError(f"cannot load {str(file.path)!r}: {error}") from None
