"""An Explanation as a notebook shows it, and as a page: the plan's pictures, remarks of the engines, and reasons."""

from __future__ import annotations

from typing import Any

from xrt.html.formatting import format_count, size
from xrt.html.rendering import render_cell, render_page
from xrt.module.explain import Explanation
from xrt.partition.html import describe_plan
from xrt.placement.html import describe_costs
from xrt.placement.precision_html import describe_errors

__all__ = ["render_explanation", "render_explanation_page"]


def render_explanation(found: Explanation) -> str:
    """Return the cell of an Explanation."""
    return render_cell("explanation.html", is_page=False, **_describe(found))


def render_explanation_page(found: Explanation, model: str) -> str:
    """Return the text of a page about the plan of a model, which is called so."""
    return render_page("explanation.html", f"Where the nodes of {model} are", is_page=True, **_describe(found))


def _describe(found: Explanation) -> dict[str, Any]:
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
