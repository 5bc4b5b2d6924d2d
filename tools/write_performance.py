"""Run the benchmarks, and write ``docs/performance.json``, ``docs/performance.md`` and README's numbers.

Each benchmark runs in a process of its own, one after the other: two at once would measure each other. The record is
written after each, so that `--keep` goes on where a run was stopped: it measures what is missing or was measured with other
arguments. With ``--only`` the named ones are measured anew and the others kept; ``--take NAME FILE`` takes what a benchmark's
``--json`` printed into a file in a run of its own, from this very checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from tools.performance_page import PAGE, README, page, with_numbers
from tools.performance_record import BENCHMARKS, RECORD, TOP, Benchmark, Entry, Record, commit, machine


def main() -> int:
    """Return 1 where a benchmark failed; the pages are written in any case, from what there is."""
    asked = _arguments()
    record = Record.read()
    if asked.take:
        record = taken(begun(record, asked), *asked.take)
    elif not asked.from_record:
        record = begun(record, asked)
        due = [benchmark for benchmark in BENCHMARKS if is_due(benchmark, record, asked)]
        for number, benchmark in enumerate(due, 1):
            print(f"[{number}/{len(due)}] {benchmark.name}", flush=True)
            record = with_entry(record, benchmark, quick=asked.quick)
            RECORD.write_text(str(record), encoding="utf-8")
    write(record)
    missing = [benchmark.name for benchmark in BENCHMARKS if benchmark.name not in record.entries]
    print(f"wrote {RECORD.name}, {PAGE.name} and README's numbers" + f"; missing: {', '.join(missing)}" * bool(missing))
    return 1 if missing else 0


def begun(record: Record, asked: argparse.Namespace) -> Record:
    """Return the record to add to; raises SystemExit where entries of another machine or other versions would stay in it."""
    here = machine()
    if not (asked.keep or asked.only or asked.take):
        return Record(here, {})
    other = [name for name in here if record.machine.get(name) != here[name]]
    if other and record.entries:
        raise SystemExit(f"the record is of another machine ({', '.join(other)} differ); measure everything: make bench")
    return Record(here, record.entries)


def is_due(benchmark: Benchmark, record: Record, asked: argparse.Namespace) -> bool:
    if asked.only:
        return benchmark.name in asked.only
    return not record.has(benchmark, quick=asked.quick)


def with_entry(record: Record, benchmark: Benchmark, *, quick: bool) -> Record:
    """Run a benchmark and return the record with what it found; without an entry, and with a word, where it failed."""
    try:
        return record.plus(benchmark.name, measured(benchmark, quick=quick))
    except subprocess.CalledProcessError as error:
        print(f"{benchmark.name} ended with code {error.returncode}:\n{error.stderr[-2000:]}", file=sys.stderr)
        return Record(record.machine, {name: entry for name, entry in record.entries.items() if name != benchmark.name})


def measured(benchmark: Benchmark, *, quick: bool) -> Entry:
    """Run a benchmark; raises CalledProcessError where it fails."""
    arguments, load, began = benchmark.asked(quick=quick), os.getloadavg()[0], time.perf_counter()
    command = [sys.executable, str(benchmark.script), *arguments.split(), "--json"]
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}  # what is measured is the XRT beside this file
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=True)
    today = datetime.now(UTC).date().isoformat()
    return Entry(arguments, today, commit(), load, time.perf_counter() - began, json.loads(done.stdout))


def taken(record: Record, name: str, path: str) -> Record:
    """Return the record with what a full run has printed into a file; raises SystemExit for another name or another text."""
    benchmark = next((one for one in BENCHMARKS if one.name == name), None)
    if benchmark is None:
        raise SystemExit(f"there is no benchmark {name!r}; there is: {', '.join(one.name for one in BENCHMARKS)}")
    try:
        figures = json.loads(Path(path).read_text(encoding="utf-8"))
        run = figures.pop("run")
        entry = Entry(benchmark.arguments, run["date"], commit(), run["load"], run["seconds"], figures)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise SystemExit(f"{path} is not what benchmarks/{name}.py --json prints: {type(error).__name__}: {error}") from error
    return record.plus(name, entry)


def write(record: Record) -> None:
    """Write record and pages."""
    RECORD.write_text(str(record), encoding="utf-8")
    record = Record.read()  # as it is rounded
    PAGE.write_text(page(record), encoding="utf-8")
    README.write_text(with_numbers(README.read_text(encoding="utf-8"), record), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--keep", action="store_true", help="measure only what the record does not have")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"measure these anew: {', '.join(names)}")
    parser.add_argument("--take", nargs=2, metavar=("NAME", "FILE"), help="take a benchmark's figures from a file")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows in seconds that everything works")
    parser.add_argument("--from-record", action="store_true", help="measure nothing: write the pages from docs/performance.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
