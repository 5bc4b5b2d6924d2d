"""An Explanation as a notebook shows it, and as a page: the plan's pictures, remarks of the engines, and reasons."""

from __future__ import annotations

from collections.abc import Iterator

from xrt.html.document import make_cell, make_page
from xrt.html.formatting import format_count, size
from xrt.html.markup import Child, tag
from xrt.html.tables import fold, make_facts, make_table, make_text
from xrt.module.explain import Explanation
from xrt.partition.html import draw_regions, list_reasons
from xrt.placement.html import list_costs

__all__ = ["render_explanation", "render_explanation_page"]


def render_explanation(found: Explanation) -> str:
    """Return the cell of an Explanation."""
    return make_cell(tag("h2", "Explanation", class_="title"), *_list_parts(found))


def render_explanation_page(found: Explanation, model: str) -> str:
    """Return the text of a page about the plan of a model, which is called so."""
    title = f"Where the nodes of {model} are"
    return make_page(title, tag("h1", title), *_list_parts(found))


def _list_parts(found: Explanation) -> Iterator[Child]:
    engines = [f"{spec} (not named; takes what no other does)" if spec == found.implicit else spec for spec in found.engines]
    yield make_facts(
        {
            "engines": ", ".join(engines),
            "threads": f"{format_count(found.threads, 'thread')} for all together",
            "device": found.device if found.device != "cpu" else None,
            "copies": f"{len(found.copies)} between devices, {size(found.bytes_copied)}" if found.copies else None,
            "graph": found.graph or None,
            "checks": found.checks or None,
            "idle pins": ", ".join(found.idle_pins) or None,
        }
    )
    if found.plan is not None:
        yield from draw_regions(found.plan)
    remarks = [(region.name, region.engine, remark) for region in found.regions for remark in region.remarks]
    if remarks:
        yield fold("Remarks of the engines", make_table("Remarks", ("region", "engine", "remark"), remarks))
    yield from list_reasons(found.reasons, "explanation.reasons")
    if found.placement:
        yield tag("h3", "Placement")
        yield make_text(found.placement)
    if found.account is not None:
        yield from list_costs(found.account)
    if found.copies:
        yield fold("Copies between devices", make_text(found.copies))
