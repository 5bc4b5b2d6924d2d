"""Whether the engines of a list honor the execution options that a module is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xrt.errors import OptionError

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import CompileContext, GraphCompiler

__all__ = ["check_options", "is_from_bundle"]


def check_options(engines: Sequence[GraphCompiler], context: CompileContext, *, is_permission: bool) -> str:
    """Raise OptionError where an engine does not honor an option; of those that are placed by measurement one has to.

    With ``is_permission`` a lower precision is allowed and not demanded, but for strict types: an engine that computes in full
    precision is measured like the others. Returns a remark where none computes in the lower one.
    """
    reasons = {engine.spec: engine.unsupported_options(context) for engine in engines}
    full = context.in_full_precision()
    is_lowered = None in reasons.values() or (is_permission and any(_lowers_by_itself(one, context) for one in engines))
    if is_permission:
        reasons = {engine.spec: engine.unsupported_options(full) for engine in engines}
    if is_permission and not is_lowered and (full is context or None not in reasons.values()):
        left_out = "; ".join(f"engine {spec!r} is left out: {reason}" for spec, reason in reasons.items())
        raise OptionError(f"no engine is left for engine='auto': {left_out}")
    if reason := next(filter(None, reasons.values()), None):
        raise OptionError(reason)
    if is_lowered:
        return ""
    return f"no engine of the list computes in {context.options.precision} here: all are placed in fp32"


def is_from_bundle(cache: CompileCache | None, context: CompileContext) -> bool:
    """Whether a bundle in lower precision is loaded: which of its engines compute so was decided when it was saved."""
    if context.options.precision == "fp32" or cache is None:
        return False
    from xrt.module.bundle_tier import BundleTier  # for those alone who ask

    return isinstance(cache.disk, BundleTier)


def _lowers_by_itself(engine: GraphCompiler, context: CompileContext) -> bool:
    """Whether an engine computes in the precision of the options by its own spec."""
    if context.options.precision == "fp32":
        return False
    from xrt.verify.precision import find_precision  # for those alone who ask

    return find_precision(engine, context.in_full_precision()) == context.options.precision
