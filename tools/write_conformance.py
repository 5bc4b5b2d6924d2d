"""Run the tests of onnx in all configurations, and write ``docs/conformance.json``, ``docs/conformance.md`` and generated tables.

Each configuration is a process of `xrt conformance`, whose report is stored in ``build/conformance``. ``--keep`` reuses stored
reports; ``--only`` runs the named configurations and keeps the record of the others.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.conformance_page import PAGE, make_page
from tools.conformance_record import CONFIGURATIONS, RECORD, TOP, Configuration, Record
from tools.known_failures import list_known_failures
from tools.write_tables import write_tables
from xrt.testing import ConformanceReport, settle

REPORTS = TOP / "build" / "conformance"


def main() -> int:
    """Return 1 if a case fails, a known failure passes, or a mixture loses a case; the pages are written in any case."""
    arguments = _parse_arguments()
    if arguments.from_record:
        return write(Record.read(), [])
    REPORTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, [configuration for configuration in CONFIGURATIONS if _is_due(configuration, arguments)]))
    configurations = [
        configuration for configuration in CONFIGURATIONS if not arguments.only or configuration.name in arguments.only
    ]
    reports = {configuration.name: read_report(configuration) for configuration in configurations}
    print("\n".join(map(str, reports.values())))
    record = Record.read().update(reports) if arguments.only else Record.from_reports(reports)
    return write(record, [f"stale: {entry}" for report in reports.values() for entry in report.stale])


def write(record: Record, stale: list[str]) -> int:
    """Write the record and the pages, and print the faults."""
    RECORD.write_text(str(record), encoding="utf-8")
    PAGE.write_text(make_page(record), encoding="utf-8")
    write_tables(record)
    faults = [*record.list_faults(), *stale]
    print("\n".join([f"wrote {RECORD.name} and {PAGE.name}; {len(faults)} faults", *faults]))
    return 1 if faults else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="configurations to run at once")
    parser.add_argument("--from-record", action="store_true", help="run nothing: write the pages from docs/conformance.json")
    parser.add_argument("--keep", action="store_true", help="reuse stored reports")
    parser.add_argument(
        "--only",
        action="append",
        choices=[configuration.name for configuration in CONFIGURATIONS],
        help="run this configuration and keep the record of the others",
    )
    return parser.parse_args()


def _is_due(configuration: Configuration, arguments: argparse.Namespace) -> bool:
    if arguments.only and configuration.name not in arguments.only:
        return False
    return not arguments.keep or not get_report_path(configuration).exists()


def get_report_path(configuration: Configuration) -> Path:
    return REPORTS / f"{re.sub(r'[^a-z]+', '-', configuration.name)}.json"


def read_report(configuration: Configuration) -> ConformanceReport:
    """Read the stored report of a configuration, with the known failures of its engines applied."""
    report = ConformanceReport.from_dict(json.loads(get_report_path(configuration).read_text(encoding="utf-8")))
    return settle(report, list_known_failures(configuration.engines), alone=len(configuration.engines) == 1)


def run(configuration: Configuration) -> None:
    """Run a configuration and store its report; raises SystemExit if the process prints none."""
    print(f"xrt conformance {' '.join(configuration.arguments)}", flush=True)
    command = [sys.executable, "-m", "xrt.cli", "conformance", *configuration.arguments, "--json"]
    process = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if not process.stdout.lstrip().startswith("{"):
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}:\n{process.stderr[-2000:]}")
    get_report_path(configuration).write_text(process.stdout, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
