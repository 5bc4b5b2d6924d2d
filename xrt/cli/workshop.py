"""``xrt conformance``, ``fuzz`` and ``bisect``, for authors of engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from xrt.cli.inputs import open_with_inputs
from xrt.cli.options import FOLDER, add_engines, add_json, add_seed, option, run_options
from xrt.cli.screen import complain, err, print_lines, show_status, show_table
from xrt.engines import split_specs
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import OptionError
from xrt.formats.onnx import save_case
from xrt.html.views import format_count
from xrt.testing import GROUPS, ConformanceReport, Outcome, ResultWord, conform
from xrt.testing.corpus import CorpusEntry
from xrt.testing.corpus.entry import write_entry
from xrt.testing.fuzz import MODE_KINDS, Finding, Fuzzer, ModeKind
from xrt.testing.open_dims import OPENINGS
from xrt.verify import Verdict

add_in_process = click.option(
    "--in-process",
    is_flag=True,
    help="Run the engines in this process, for a debugger: a crash then ends the command, and is not just a failed case",
)


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
    help="Run at several sizes, with symbolic dims for every extent of the inputs, one for equal extents, or for the first",
)
@click.option("--reasons", is_flag=True, help="List why each declined case was declined")
@click.option("--operators", is_flag=True, help="Show the counts per operator, and its engines")
@add_in_process
@add_json
def conformance_command(
    engines: str, cases: tuple[str, ...], reasons: bool, operators: bool, in_process: bool, as_json: bool, **params: Any
) -> int:
    """Count the tests of onnx that ENGINES (one, or several with commas) pass, decline and fail; exit code 1 when one fails."""
    specs, patterns = split_specs(engines), ",".join(cases)
    title = f"{engines}, alternating" if params["alternate"] else engines
    failed = 0
    with show_status(title) as status:

        def advance(done: int, total: int, outcome: Outcome) -> None:
            nonlocal failed
            if outcome.word is ResultWord.FAILED:
                failed += 1
            failures = f", {failed} failed" if failed else ""
            status.update(f"{title}{failures}: {outcome.group}, {done:,} of {total:,}")

        # One engine is called directly, without XRT's planner; a list is planned as in a module.
        selected = specs if len(specs) > 1 else specs[0]
        report = conform(selected, patterns, isolate=not in_process, progress=advance, **params)
    if not report.outcomes:
        group_filter = f" in {', '.join(params['groups'])}" if params["groups"] else ""
        raise OptionError(f"no test has a name like {patterns}{group_filter}; names read like test_conv_with_strides_padding")
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=1))
    else:
        _show(report, reasons=reasons, operators=operators)
    return 0 if report.ok else 1


def _show(report: ConformanceReport, *, reasons: bool, operators: bool) -> None:
    if operators:
        placed = report.count_placements()
        engines = {name: ", ".join(f"{engine} {count}" for engine, count in counts.items()) for name, counts in placed.items()}
        rows = [(name, *counts.values(), engines.get(name, "")) for name, counts in report.count_by_operator().items()]
        show_table(("operator", *ResultWord, "ran on"), rows, numbers=tuple(ResultWord))
    if reasons:
        show_table(("declined", "reason"), [(o.case, o.reason) for o in report.list_outcomes(ResultWord.DECLINED)])
    if gaps := report.list_outcomes(ResultWord.GAP):
        show_table(("known gap", "reason"), [(o.case, o.reason) for o in gaps])
    if len(groups := report.count_by_group()) > 1:
        rows = [(name, *counts.values()) for name, counts in groups.items()]
        show_table(("group", *ResultWord), rows, numbers=tuple(ResultWord))
    print_lines(str(report))


_GRAPHS_PER_LINE = 500
"""Graphs between two lines of progress, which are printed if standard error is not a terminal."""


@click.command("fuzz")
@option("--count", default=1000, type=click.IntRange(1), help="Number of graphs")
@add_seed("Seed of the first graph; the next graphs have the next seeds")
@add_engines("Engines to try: tvm,ort", "the first", default=lambda: registry.list_by_rank()[0])
@option(
    "--way",
    "kinds",
    multiple=True,
    type=click.Choice(MODE_KINDS),
    default=MODE_KINDS[:3],
    help="How graphs run: on one engine, with the reference as fallback, on a random mixture, or alternating",
)
@click.option("--keep", type=FOLDER, help="Write graphs that differ to this folder, as entries of the corpus")
@add_in_process
def fuzz_command(count: int, seed: int, engine: str, kinds: tuple[ModeKind, ...], keep: Path | None, in_process: bool) -> int:
    """Run generated graphs on single engines, with the reference as fallback, and on mixtures.

    The exit code is 1 on a difference, and where nothing was compared: with --way alone, if an engine supported no graph.
    """
    specs = split_specs(engine) if engine else []
    _check_engines(specs)
    fuzzer = Fuzzer(specs, isolate=not in_process, kinds=kinds)
    with show_status("generated graphs") as status:

        def advance(done: int, finding: Finding | None) -> None:
            status.update(f"generated graphs, {done:,} of {count:,}")
            if finding is not None:
                _show_finding(fuzzer, finding, keep)
            elif not err.is_terminal and done % _GRAPHS_PER_LINE == 0:
                disagreements = format_count(len(fuzzer.findings), "disagreement")
                err.print(f"{done:,} of {count:,} graphs, {disagreements}", markup=False)

        fuzzer.run(range(seed, seed + count), advance)
    words = sorted({word for word, _ in fuzzer.counts})
    show_table(("way", *Verdict), [(w, *(fuzzer.counts[w, v] for v in Verdict)) for w in words], numbers=tuple(Verdict))
    print_lines(f"{count:,} graphs from seed {seed}: {format_count(len(fuzzer.findings), 'disagreement')}")
    # Engines that alone declined every graph.
    declining = [w for w in words if w.endswith(" alone") and not any(fuzzer.counts[w, v] for v in Verdict if v != "declined")]
    for word in declining:
        complain("nothing compared", f"{word}: it supported none of the graphs; try a larger --count")
    return 1 if fuzzer.findings or (declining and set(kinds) == {"alone"}) else 0


def _check_engines(engines: list[str]) -> None:
    if not engines:
        raise OptionError("no engine is named; name some to try with --engines")
    for engine in engines:
        if engines.count(engine) > 1:
            raise OptionError(f"engine {engine!r} is named twice; name each once")
        if registry.create(engine).spec == REFERENCE:
            raise OptionError(f"every engine is compared with {REFERENCE!r}, which cannot be compared with itself; name others")


def _show_finding(fuzzer: Fuzzer, finding: Finding, keep: Path | None) -> None:
    complain("disagreement", str(finding))
    err.print(str(finding.sample.function), markup=False)
    if keep is not None:
        why = f"{finding.mode}: {finding.message}".replace("\n", " ")
        expected = tuple(fuzzer.run_reference(finding.sample.function, finding.sample.inputs))
        entry = CorpusEntry(f"fuzz_{finding.seed}", why, finding.sample.function, finding.sample.inputs, expected)
        err.print(f"kept as {write_entry(entry, keep)}", markup=False)


@click.command("bisect")
@run_options
@click.option(
    "-o",
    "--output",
    "target",
    type=FOLDER,
    help="Folder for the part as model.onnx, with inputs and expected outputs in test_data_set_0",
)
def bisect_command(model: str, target: Path | None, **params: Any) -> int:
    """Find the smallest part of MODEL on which its engine differs from the reference engine; exit code 1 where there is one.

    MODEL is an ONNX file, a bundle or a shipped model.
    """
    _, module, values = open_with_inputs(model, params)
    # Reducing runs the parts many times, so the status shows how far the smallest one is reduced.
    with module, show_status("looking for a difference") as status:
        report = "{} parts tried, the smallest that differs has {} nodes".format
        culprit = module.bisect(**values, progress=lambda runs, nodes: status.update(report(runs, nodes)))
    if culprit is None:
        print_lines("no region differs from the reference engine")
        return 0
    print_lines(f"{culprit} ({culprit.runs} parts tried)")
    if target is not None:
        save_case(culprit.function, culprit.inputs, culprit.expected, target)
        print_lines(f"written to {target}")
    return 1
