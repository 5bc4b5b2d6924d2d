"""Rewrite the table of deviations in docs/concepts/numerics.md from what the engines declare."""

from __future__ import annotations

from pathlib import Path

from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import DEVIATIONS

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "numerics.md"
BEGIN, END = "<!-- deviations: generated -->", "<!-- end of deviations -->"


def make_table() -> str:
    """Make a section for each kind of special value, with a row for each engine that deviates from the reference."""
    rows = []
    for kind, effect in DEVIATIONS.items():
        rows += ["", f"**{kind}**: {effect}.", "", "| engine | operators |", "|---|---|"]
        for name in sorted(registry.names()):
            for deviation in registry.engine_class(name).deviations:
                if deviation.kind == kind:
                    rows.append(f"| `{name}` | {', '.join(deviation.operators) or 'all'} |")
    return "\n".join([BEGIN, *rows, "", END])


def rewrite(page: str) -> str:
    """Replace the text between the two markers of the page."""
    before, rest = page.split(BEGIN)
    return before + make_table() + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
