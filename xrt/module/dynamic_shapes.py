"""Whether one program serves all sizes of a model's symbolic dims, or each set of sizes has a program of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xrt.errors import PlanError
from xrt.module.options import IMPLICIT

if TYPE_CHECKING:
    from xrt.module.specializable import Specializable

__all__ = ["find_reason_for_sizes"]


def find_reason_for_sizes(module: Specializable, values: Any) -> str:
    """Return why each set of sizes has a program of its own; empty where one program serves all.

    The engines of the module all take symbolic dims, and its model has some. One program serves where no engine has a reason
    against it for its region, and where the reference engine, behind others, gets no node that is theirs at the sizes of
    ``values``. Without values (None) it gets no node at all.
    """
    if module._settings.dynamic == "always":
        return ""
    sizes = None if values is None else module._source.key(values, False)
    if module._stored is not None and module._stored.has(None):
        return ""
    if module._stored is not None and module._stored.has(sizes):
        return "the cache has a program for these sizes"
    try:
        build = module._find_or_plan((None, ()), None)
        plan = build.plan
    except PlanError as error:
        return str(error).splitlines()[0]
    engines = build.engines.by_spec
    behind = [engine.spec for engine in module._engines.engines[1:] if engine.name == IMPLICIT]
    for launch in plan.launches:
        if launch.engine in behind:
            continue
        engine = engines.get(launch.engine)
        if engine is None or not engine.supports_dynamic_shapes:
            return f"engine {launch.engine!r} needs every extent fixed"
        if reason := engine.why_not_dynamic(launch.function):
            return reason
    moved = [name for launch in plan.launches if launch.engine in behind for name in launch.nodes]
    if moved and sizes is not None:
        fixed = module._find_or_plan((sizes, ()), values).plan
        moved = sorted({*moved}.difference(*(launch.nodes for launch in fixed.launches if launch.engine in behind)))
    return next((str(reason) for reason in plan.reasons if reason.node in moved), "")
