"""``xrt conformance``: the tests of the installed onnx package on an engine, on a list, alternating, or placed by measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from xrt.cli.options import ENGINE_NAMES, check_folder
from xrt.cli.screen import complain, err, out, progress, show_table
from xrt.engines import split_specs
from xrt.engines.contract import registry
from xrt.errors import OptionError
from xrt.module.options import REFERENCE
from xrt.testing import GROUPS, ConformanceReport, Outcome, ResultWord, conform
from xrt.testing.corpus import CorpusEntry
from xrt.testing.corpus.entry import write_entry
from xrt.testing.fuzz import KINDS_OF_WAY, Finding, Fuzzer, KindOfWay
from xrt.testing.open_dims import OPENINGS, Opening
from xrt.testing.remote import RemoteFuzzer
from xrt.verify import Verdict

__all__ = ["command", "fuzz_command"]


@click.command("conformance")
@click.argument("engines")
@click.option("--group", "groups", multiple=True, type=click.Choice(list(GROUPS)), help="Only these groups of tests; repeatable")
@click.option(
    "--cases",
    multiple=True,
    default=("*",),
    show_default="all",
    help="Which cases, as globs with commas: 'test_conv*'; repeatable",
)
@click.option("--alternate", is_flag=True, help="Put neighboring nodes on different engines, each node in its own region")
@click.option(
    "--opening",
    type=click.Choice(OPENINGS),
    help="Replace extents of inputs by symbolic dims, every one, equal ones by one, or the first, and run at several sizes",
)
@click.option("--reference", is_flag=True, help="Also run onnx.reference.ReferenceEvaluator, and count what it alone passes")
@click.option("--reasons", is_flag=True, help="List why each declined case was declined")
@click.option("--operators", is_flag=True, help="Show the counts per operator, and its engines")
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the cases in this process, for a debugger: a crash ends it, where it is one failed case otherwise",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def command(
    engines: str,
    groups: tuple[str, ...],
    cases: tuple[str, ...],
    alternate: bool,
    opening: Opening | None,
    reference: bool,
    reasons: bool,
    operators: bool,
    in_process: bool,
    as_json: bool,
) -> int:
    """Count the tests of onnx that ENGINES (one, or several with commas) pass, decline and fail; exit code 1 when one fails.

    With "auto" among them each case is placed by measurement, on the other engines of the list or on all that are ready.
    """
    listed = split_specs(engines)
    with ConformanceProgress(f"{engines}{', alternating' * alternate}") as watched:
        report = conform(
            listed if len(listed) > 1 else listed[0],
            ",".join(cases),
            groups=groups,
            alternate=alternate,
            opening=opening,
            reference=reference,
            isolate=not in_process,
            progress=watched.advance,
        )
    if not report.outcomes:
        within = f" in {', '.join(groups)}" if groups else ""
        raise OptionError(f"no test has a name like {','.join(cases)}{within}; names read like test_conv_with_strides_padding")
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=1))
    else:
        _show(report, reasons=reasons, operators=operators)
    return 0 if report.ok else 1


class ConformanceProgress:
    """A progress bar over the cases, with what failed so far; nothing off a terminal."""

    def __init__(self, what: str) -> None:
        self._bar, self._what = progress(), what
        self._task = self._bar.add_task(what, total=None)
        self._failed = 0

    def __enter__(self) -> ConformanceProgress:
        self._bar.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self._bar.stop()

    def advance(self, done: int, total: int, outcome: Outcome) -> None:
        self._failed += outcome.word is ResultWord.FAILED
        failed = f", {self._failed} failed" if self._failed else ""
        self._bar.update(self._task, completed=done, total=total, description=f"{self._what}{failed}: {outcome.group}")


def _show(report: ConformanceReport, *, reasons: bool, operators: bool) -> None:
    if operators:
        placed = report.placements()
        rows = [(name, *_row(counts), _shown(placed.get(name, {}))) for name, counts in report.by_operator().items()]
        show_table(("operator", *ResultWord, "ran on"), rows, numbers=tuple(ResultWord))
    if reasons:
        show_table(("declined", "reason"), [(o.case, o.reason) for o in report.of(ResultWord.DECLINED)])
    if gaps := report.of(ResultWord.GAP):
        show_table(("known gap", "reason"), [(o.case, o.reason) for o in gaps])
    if len(groups := report.by_group()) > 1:
        show_table(("group", *ResultWord), [(name, *_row(counts)) for name, counts in groups.items()], numbers=tuple(ResultWord))
    out.print(str(report), markup=False)


def _row(counts: Mapping[ResultWord, int]) -> list[int]:
    return [counts[word] for word in ResultWord]


def _shown(engines: Mapping[str, int]) -> str:
    return ", ".join(f"{engine} {count}" for engine, count in engines.items())


_REPORT_EVERY = 500
"""Off a terminal, where nothing moves, a line says now and then how far it is."""


@click.command("fuzz")
@click.option("--count", default=1000, show_default=True, type=click.IntRange(1), help="Number of graphs")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Seed of the first graph; the next graphs have the next seeds",
)
@click.option(
    *ENGINE_NAMES[:-1],
    "engines",
    default=lambda: registry.list_by_rank()[0],
    metavar="ENGINES",
    help="Engines for every graph: tvm,ort [default: the first]",
)
@click.option("--rarely", default="", metavar="ENGINES", help="Slow engines, for one graph in --one-in")
@click.option("--one-in", default=50, show_default=True, type=click.IntRange(1), help="How rarely the engines of --rarely run")
@click.option(
    "--way",
    "ways",
    multiple=True,
    type=click.Choice(KINDS_OF_WAY),
    default=KINDS_OF_WAY[:3],
    show_default=True,
    help="How graphs run: on one engine, with the reference as fallback, on a random mixture, or alternating",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write graphs that differ to this folder, as entries of the corpus",
)
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the graphs in this process, for a debugger: a crash ends it, where it is one difference otherwise",
)
def fuzz_command(
    count: int,
    seed: int,
    engines: str,
    rarely: str,
    one_in: int,
    ways: tuple[KindOfWay, ...],
    keep: Path | None,
    in_process: bool,
) -> int:
    """Run generated graphs on single engines, with the reference as fallback, and on mixtures.

    The exit code is 1 on a difference, and where nothing was compared: with --way alone, if an engine took none of the graphs.
    """
    always, seldom = (split_specs(names) if names else [] for names in (engines, rarely))
    _check(always + seldom)
    if keep is not None:
        check_folder(keep)
    fuzzer = (Fuzzer if in_process else RemoteFuzzer)(always, seldom, one_in, kinds=ways)
    _run(fuzzer, range(seed, seed + count), keep)
    words = sorted({word for word, _ in fuzzer.counts})
    show_table(("way", *Verdict), [(w, *(fuzzer.counts[w, v] for v in Verdict)) for w in words], numbers=tuple(Verdict))
    out.print(f"{count:,} graphs from seed {seed}: {_counted(len(fuzzer.findings))}", markup=False)
    idle = _idle_ways(fuzzer)
    for word in idle:
        complain("nothing compared", f"{word}: it took none of the graphs, so nothing is known of it; try a larger --count")
    return 1 if fuzzer.findings or (idle and set(ways) == {"alone"}) else 0


def _idle_ways(fuzzer: Fuzzer) -> list[str]:
    """Return the ways of one engine alone in which every graph was declined."""
    alone = [word for word in dict.fromkeys(word for word, _ in fuzzer.counts) if word.endswith(" alone")]
    return [word for word in alone if not any(fuzzer.counts[word, verdict] for verdict in Verdict if verdict != "declined")]


def _check(engines: list[str]) -> None:
    """Raise OptionError unless the engines are some, each once, and none is the one against which they are held."""
    if not engines:
        raise OptionError("no engine is named; name some to try with --engines, or with --rarely")
    for engine in engines:
        if engines.count(engine) > 1:
            raise OptionError(f"engine {engine!r} is named twice; name each once, in --engines or in --rarely")
        if registry.create(engine).spec == REFERENCE:
            raise OptionError(f"every engine is held against {REFERENCE!r}, which cannot be held against itself; name others")


def _counted(disagreements: int) -> str:
    return f"{disagreements} disagreement{'s' * (disagreements != 1)}"


def _run(fuzzer: Fuzzer, seeds: range, keep: Path | None) -> None:
    with progress() as bar:
        task = bar.add_task("generated graphs", total=len(seeds))

        def advance(done: int, found: Finding | None) -> None:
            bar.update(task, completed=done)
            if found is not None:
                _tell(fuzzer, found, keep)
            elif not err.is_terminal and done % _REPORT_EVERY == 0:
                err.print(f"{done:,} of {len(seeds):,} graphs, {_counted(len(fuzzer.findings))}", markup=False)

        fuzzer.run(seeds, advance)


def _tell(fuzzer: Fuzzer, found: Finding, keep: Path | None) -> None:
    complain("disagreement", str(found))
    err.print(str(found.sample.function), markup=False)
    if keep is not None:
        why = f"{found.way}: {found.message}".replace("\n", " ")
        expected = tuple(fuzzer.truth(found.sample.function, found.sample.inputs))
        entry = CorpusEntry(f"fuzz_{found.seed}", why, found.sample.function, found.sample.inputs, expected)
        err.print(f"kept as {write_entry(entry, keep)}", markup=False)
