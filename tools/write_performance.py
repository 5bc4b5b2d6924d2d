"""Run the benchmarks, and write ``docs/performance.json``, ``docs/performance.md`` and the table in README.

Each benchmark runs in a new process, one after the other, because two at once would disturb each other. The record is written
after each benchmark. ``--keep`` continues an interrupted run: it only runs benchmarks that are missing in the record or were run
with other arguments. ``--only NAME ...`` repeats some benchmarks. ``--add NAME FILE`` adds the output of a benchmark that was run
with ``--json``.
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

from tools.performance_page import PAGE, README, make_page, update_readme
from tools.performance_record import BENCHMARKS, BY_NAME, RECORD, TOP, Benchmark, Entry, Record, describe_machine, get_commit


def main() -> int:
    """Run the benchmarks that are due and write the pages; return 1 if a benchmark is missing in the record."""
    arguments = _parse_arguments()
    record = Record.read()
    if arguments.add:
        record = add_output(check_machine(record, arguments), *arguments.add)
    elif not arguments.from_record:
        record = check_machine(record, arguments)
        due = [benchmark for benchmark in BENCHMARKS if is_due(benchmark, record, arguments)]
        for number, benchmark in enumerate(due, 1):
            print(f"[{number}/{len(due)}] {benchmark.name}", flush=True)
            record = run_and_add(record, benchmark, quick=arguments.quick)
            RECORD.write_text(str(record), encoding="utf-8")
    write(record)
    missing = [benchmark.name for benchmark in BENCHMARKS if benchmark.name not in record.entries]
    print(f"wrote {RECORD.name}, {PAGE.name} and README's table" + f"; missing: {', '.join(missing)}" * bool(missing))
    return 1 if missing else 0


def check_machine(record: Record, arguments: argparse.Namespace) -> Record:
    """Return the record to extend; raises SystemExit if its entries are of another machine or of other versions."""
    machine = describe_machine()
    if not (arguments.keep or arguments.only or arguments.add):
        return Record(machine, {})
    changed = [name for name in machine if record.machine.get(name) != machine[name]]
    if changed and record.entries:
        raise SystemExit(f"the record is of another machine ({', '.join(changed)} differ); measure everything: make bench")
    return Record(machine, record.entries)


def is_due(benchmark: Benchmark, record: Record, arguments: argparse.Namespace) -> bool:
    if arguments.only:
        return benchmark.name in arguments.only
    return not record.has(benchmark, quick=arguments.quick)


def run_and_add(record: Record, benchmark: Benchmark, *, quick: bool) -> Record:
    """Run a benchmark and add its figures; if it fails, print its errors and remove the entry."""
    try:
        return record.add(benchmark.name, run(benchmark, quick=quick))
    except subprocess.CalledProcessError as error:
        print(f"{benchmark.name} ended with code {error.returncode}:\n{error.stderr[-2000:]}", file=sys.stderr)
    except ValueError as error:
        print(f"{benchmark.name} printed no JSON: {error}", file=sys.stderr)
    return record.remove(benchmark.name)


def run(benchmark: Benchmark, *, quick: bool) -> Entry:
    """Run a benchmark; raises CalledProcessError if it fails, ValueError if it prints no JSON."""
    arguments, load, start = benchmark.get_arguments(quick=quick), os.getloadavg()[0], time.perf_counter()
    command = [sys.executable, str(benchmark.script), *arguments.split(), "--json"]
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}  # measure the XRT of this checkout, not an installed one
    process = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=True)
    today = datetime.now(UTC).date().isoformat()
    return Entry(arguments, today, get_commit(), load, time.perf_counter() - start, json.loads(process.stdout))


def add_output(record: Record, name: str, path: str) -> Record:
    """Add the output of a full run from a file; raises SystemExit for an unknown benchmark, and for a file that is no output."""
    benchmark = BY_NAME.get(name)
    if benchmark is None:
        raise SystemExit(f"no benchmark {name!r}; there are: {', '.join(BY_NAME)}")
    try:
        figures = json.loads(Path(path).read_text(encoding="utf-8"))
        circumstances = figures.pop("run")
        date, load, seconds = (circumstances[key] for key in ("date", "load", "seconds"))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise SystemExit(f"{path} is not the output of benchmarks/{name}.py --json: {type(error).__name__}: {error}") from error
    return record.add(name, Entry(benchmark.arguments, date, get_commit(), load, seconds, figures))


def write(record: Record) -> None:
    """Write the record and the pages."""
    RECORD.write_text(str(record), encoding="utf-8")
    record = Record.read()  # with rounded figures, as the tests read it
    PAGE.write_text(make_page(record), encoding="utf-8")
    README.write_text(update_readme(README.read_text(encoding="utf-8"), record), encoding="utf-8")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="measure only what the record does not have")
    parser.add_argument("--only", nargs="+", choices=tuple(BY_NAME), metavar="NAME", help=f"repeat these: {', '.join(BY_NAME)}")
    parser.add_argument("--add", nargs=2, metavar=("NAME", "FILE"), help="add the output of a benchmark from a file")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows in seconds that everything works")
    parser.add_argument("--from-record", action="store_true", help="measure nothing: write the pages from docs/performance.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
