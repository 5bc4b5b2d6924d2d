"""`xrt conform auto` over some of the cases, as ``docs/conformance-auto.json`` and as a section of ``docs/conformance.md``.

A search per case takes seconds where engines compile slowly, so all groups run but the largest of models, and of the node tests every
eighth. ``python tools/conformance_auto.py`` runs them; `tools/write_conformance.py` writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from tools.conformance_record import TOP, versions
from xrt.testing import Outcome, Report, Word, conform

AUTO = TOP / "docs" / "conformance-auto.json"

EVERY = 8
"""Of the node tests, one in so many runs."""
MODELS = ("simple", "pytorch-operator", "light")
"""The groups of which every case runs."""
PARTS: Sequence[tuple[tuple[str, ...], tuple[int, int]]] = (
    (MODELS, (0, 1)),
    *((("node",), (start, 2 * EVERY)) for start in (0, EVERY)),
)
"""What runs in a process of its own: groups, and a share of them."""


def main() -> int:
    """Return 1 where a case fails; the record is written in any case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run at once")
    with ProcessPoolExecutor(parser.parse_args().jobs, mp_context=get_context("spawn")) as pool:
        report = Report.joined(pool.map(_part, PARTS))
    AUTO.write_text(json.dumps(record_of(report), indent=1) + "\n", encoding="utf-8")
    print(report)
    return 0 if report.ok else 1


def _part(part: tuple[tuple[str, ...], tuple[int, int]]) -> Report:
    groups, share = part
    return conform("auto", groups=groups, shard=share, progress=_told)


def _told(done: int, count: int, outcome: Outcome) -> None:
    print(f"{done}/{count} {outcome.case} {outcome.word} {','.join(outcome.engines)} {outcome.seconds:.1f} s", flush=True)


def record_of(report: Report) -> dict[str, Any]:
    """Return what is kept: counts and cases that did not pass. Which engine is quickest changes from run to run, and is counted."""
    ran_on = Counter(engine for outcome in report.outcomes for engine in outcome.engines)
    others = {o.case: [o.word, o.reason] for o in report.outcomes if o.word is not Word.PASSED}
    return {
        "versions": versions(),
        "groups": report.by_group(),
        "ran_on": dict(ran_on.most_common()),
        "mixed": report.mixed,
        "not_passed": others,
    }


def section(record: Mapping[str, Any] | None = None) -> str:
    """Return the page's section, of the record that is kept."""
    found = record or json.loads(AUTO.read_text(encoding="utf-8"))
    rows = [f"| {group} | {' | '.join(f'{counts[word]:,}' for word in Word)} |" for group, counts in found["groups"].items()]
    ran_on = ", ".join(f"{engine} {count}" for engine, count in found["ran_on"].items())
    lines = [
        "## Placed by measurement",
        "",
        f"`xrt conform auto` searches anew for every case. Here one in {EVERY} of the node tests ran, and all cases of "
        f"{', '.join(f'`{name}`' for name in MODELS)}; `pytorch-converted` did not run.",
        "",
        f"| group | {' | '.join(Word)} |",
        f"| {' | '.join(['---'] * (len(Word) + 1))} |",
        *rows,
        "",
        f"Cases that ran on each engine: {ran_on}; {found['mixed']} ran on several. Which engine is the quickest at a case, and which",
        "is measured before the time of the search is up, changes from run to run.",
        *[f"\n- `{case}`: {word}: {reason}" for case, (word, reason) in found["not_passed"].items()],
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
