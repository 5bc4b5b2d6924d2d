"""`xrt conformance auto` over some of the cases, as ``docs/conformance-auto.json`` and as a section of the page.

A search per case takes a second and more where engines compile slowly, so of the node tests every second runs, and of the
models all. ``python tools/conformance_auto.py`` runs them, and writes the record after each part; `tools/write_conformance.py`
writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from tools.conformance_record import ENGINES, TOP, versions
from tools.known_failures import list_known_failures
from xrt.testing import ConformanceReport, Outcome, ResultWord, conform
from xrt.testing.conformance import BUDGET

AUTO = TOP / "docs" / "conformance-auto.json"

EVERY = 2
"""Of the node tests, one in so many runs."""
MODELS = ("simple", "pytorch-operator", "pytorch-converted")
"""The groups of small models."""
SHARES = 4
"""In how many parts the node tests run, each of which comes into the record when it ends."""
PARTS: Sequence[tuple[tuple[str, ...], tuple[int, int]]] = (
    *((("node",), (EVERY * share, EVERY * SHARES)) for share in range(SHARES)),
    (MODELS, (0, 1)),
    (("light",), (0, 1)),
)
"""What runs in a process of its own: groups, and a share of them."""


def main() -> int:
    """Return 1 where a case fails; the record is written in any case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run at once")
    reports: list[ConformanceReport] = []
    with ProcessPoolExecutor(parser.parse_args().jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_part, part) for part in PARTS]):
            reports.append(done.result())
            AUTO.write_text(json.dumps(record_of(ConformanceReport.join(reports)), indent=1) + "\n", encoding="utf-8")
    report = ConformanceReport.join(reports)
    print(report)
    return 0 if report.ok else 1


def _part(part: tuple[tuple[str, ...], tuple[int, int]]) -> ConformanceReport:
    groups, share = part
    return conform("auto", groups=groups, shard=share, gaps=list_known_failures(ENGINES), progress=_told)


def _told(done: int, count: int, outcome: Outcome) -> None:
    print(f"{done}/{count} {outcome.case} {outcome.word} {','.join(outcome.engines)} {outcome.seconds:.1f} s", flush=True)


def record_of(report: ConformanceReport) -> dict[str, Any]:
    """Return what is kept: counts, and the cases that did not pass. Which engine is the quickest is counted alone."""
    ran_on = Counter(engine for outcome in report.outcomes for engine in outcome.engines)
    others = {o.case: [o.word, o.reason] for o in report.outcomes if o.word is not ResultWord.PASSED}
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
    rows = [
        f"| {group} | {' | '.join(f'{counts[word]:,}' for word in ResultWord)} |" for group, counts in found["groups"].items()
    ]
    ran_on = ", ".join(f"{engine} {count}" for engine, count in found["ran_on"].items())
    lines = [
        "## Placed by measurement",
        "",
        f"`xrt conformance auto` searches again for every case, for {BUDGET} s. One node test in {EVERY} ran, and of",
        f"{', '.join(f'`{name}`' for name in found['groups'] if name != 'node')} every case.",
        "",
        f"| group | {' | '.join(ResultWord)} |",
        f"| {' | '.join(['---'] * (len(ResultWord) + 1))} |",
        *rows,
        "",
        f"Cases that ran on each engine: {ran_on}; {found['mixed']} ran on several.",
        "Which engine is the quickest at a case, and which is measured before the time is up, changes from run to run.",
        "",
        *[f"- `{case}`: {word}: {reason.rstrip(':')}" for case, (word, reason) in found["not_passed"].items()],
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
