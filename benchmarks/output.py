"""Print the figures of a benchmark as JSON, or as the tables of its section in ``docs/performance.md``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def print_figures(name: str, figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print figures of the benchmark called ``name``."""
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    sys.path.insert(0, str(Path(__file__).parents[1]))  # a script has only its own folder in sys.path
    from tools.performance_page import SECTIONS, make_verdict_table

    section = SECTIONS[name]
    print(f"{figures['machine']}\n")
    print("\n".join([*section.list_tables(figures), make_verdict_table(list(section.list_verdicts(figures)))]))
