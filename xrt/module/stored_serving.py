"""The serving configuration of a model in files: in the cache, for modules with its engines and threads, and in a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.errors import BundleError, XRTError

if TYPE_CHECKING:
    from xrt.cache import Signature
    from xrt.cache.disk.cost_store import CostStore
    from xrt.formats.bundle import BundleFile
    from xrt.formats.serving_record import ServingRecord
    from xrt.module.module import XRTModule
    from xrt.precision.lowering import LoweringWithinBudget

__all__ = ["SERVING", "load_serving", "read_serving", "store_serving"]

SERVING = "serving"
"""The section of a bundle; a version of XRT that does not know it ignores it."""


def _find_place(module: XRTModule, lower: LoweringWithinBudget | None) -> tuple[CostStore, Signature] | None:
    """Return the store, and the name in it; None where nothing can be kept.

    An error budget has names of its own, unless it is in a metric whose code is unknown: then nothing can.
    """
    from xrt.cache import DiskTier, Signature
    from xrt.cache.disk.cost_store import CostStore
    from xrt.placement.decision_store import make_decision_key

    if not isinstance(module._cache.disk, DiskTier) or module._source.is_traced:
        return None
    store = CostStore.for_cache(module._cache)
    request = module._engines.make_request(module._source.get_declared_function(), clustering=module._settings.clustering)
    key = make_decision_key(request)
    terms = () if lower is None else lower.terms.ingredients
    if store is None or key is None or terms is None:
        return None
    return store, Signature((*key.ingredients, *terms, ("objective", "throughput")))


def load_serving(module: XRTModule) -> ServingRecord | None:
    """Return what an earlier search has chosen; None where none is known."""
    try:
        place = _find_place(module, module._lowering)
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
    from xrt.formats.serving_record import parse_serving

    data = file.find_section(f"{SERVING}{file.suffix}")
    try:
        return None if data is None else parse_serving(bytes(data))
    except BundleError as error:
        raise BundleError(f"cannot load {str(file.path)!r}: {error}") from None
