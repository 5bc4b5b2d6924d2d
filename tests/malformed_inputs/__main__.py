"""``python -m tests.malformed_inputs``: damaged and malicious files, given to everything of XRT that reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tests.malformed_inputs import HostileFinding, Report, cases, keep, run
from xrt.cli.options import check_folder
from xrt.cli.screen import complain, err, human_bytes, out, progress, show_table

__all__ = ["command"]

_OUTCOMES = ("refused", "read", "failed")
_TOLD_EVERY = 2000
"""Off a terminal, where nothing moves, a line says now and then how far it is."""


@click.command("malformed_inputs")
@click.option("--count", default=200, show_default=True, type=click.IntRange(0), help="How many mutants for each reader")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="The first mutant; the others have the numbers after it"
)
@click.option("--reader", "readers", multiple=True, help="A reader to try; may be given several times. All, if none is given")
@click.option(
    "--keep", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write the files of each finding to this folder"
)
def command(count: int, seed: int, readers: tuple[str, ...], folder: Path | None) -> int:
    """Give every reader damaged and crafted files; exit code 1 when one crashes, hangs, grows, or tells no clear error."""
    if folder is not None:
        check_folder(folder)
    keys = cases(readers, count=count, seed=seed)
    report = _run(keys, folder)
    shown = sorted({reader for reader, _ in report.outcomes})
    rows = [(reader, *(report.outcomes[reader, word] for word in _OUTCOMES)) for reader in shown]
    show_table(("reader", *_OUTCOMES), rows, numbers=_OUTCOMES)
    out.print(
        f"{len(keys):,} files: {_counted(len(report.findings))}; "
        f"at most {human_bytes(report.memory)} of memory and {report.seconds:.1f} s of computing for one",
        markup=False,
    )
    return 1 if report.findings else 0


def _counted(findings: int) -> str:
    return f"{findings} finding{'s' * (findings != 1)}"


def _run(keys: Sequence[tuple[str, str]], folder: Path | None) -> Report:
    with progress() as bar:
        task = bar.add_task("hostile files", total=len(keys))

        def advance(done: int, found: HostileFinding | None) -> None:
            bar.update(task, completed=done)
            if found is not None:
                complain("finding", str(found))
                if folder is not None:
                    err.print(f"kept as {keep(found, folder)}", markup=False)
            elif not err.is_terminal and done % _TOLD_EVERY == 0:
                err.print(f"{done:,} of {len(keys):,} files", markup=False)

        return run(keys, advance)


if __name__ == "__main__":
    sys.exit(command(standalone_mode=False))
