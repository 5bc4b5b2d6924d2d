"""The table of ``xrt bench`` on a terminal of 80 columns, with its details, and in a pipe."""

from __future__ import annotations

import importlib
import re
from io import StringIO

import pytest
from rich.console import Console

from xrt.bench import BenchCandidate, Group, ReportRow
from xrt.bench.job_server import Start
from xrt.cli import screen
from xrt.measure.statistics import RatioInterval

bench = importlib.import_module("xrt.cli.bench")

REASON = "no engine takes 2 of 5 nodes; list another:\n  'a' (MatMul): toy: none\n  'b' (MatMul): toy: none\n"


def start(**more: object) -> Start:
    facts = {"import_seconds": 0.1, "compile_seconds": 0.26, "first_seconds": 0.003, "alone_seconds": 0.002}
    fields = dict.fromkeys(Start.__dataclass_fields__, 0) | facts
    return Start(**fields | {"regions": ("ort",), "steady": True, "versions": (), "peak_bytes": 108_500_000} | more)  # type: ignore[arg-type]


GROUP = Group(
    "mlp",
    None,
    2,
    (
        ReportRow(
            BenchCandidate.parse("ort"), "fastest", start=start(), median_seconds=0.00204, ratio=RatioInterval(1.0, 1.0, 1.0)
        ),
        ReportRow(
            BenchCandidate.parse("tvm,ort with Conv|Gemm|MatMul|Softmax=ort"),
            "slower",
            start=start(steady=False, warm_calls=200),
            median_seconds=0.0121,
            ratio=RatioInterval(5.931, 5.874, 6.012),
        ),
        ReportRow(BenchCandidate.parse("toy"), "failed", REASON),
    ),
)


def shown(width: int, monkeypatch: pytest.MonkeyPatch, *, verbose: bool = False) -> list[str]:
    console = Console(file=StringIO(), force_terminal=True, no_color=True, width=width, highlight=False, soft_wrap=True)
    for module in (bench, screen):
        monkeypatch.setattr(module, "out", console)
    bench.show_group(GROUP, verbose=verbose)
    assert isinstance(console.file, StringIO)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    return [line.rstrip() for line in plain.splitlines()]


def test_one_table_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(80, monkeypatch) == [
        "mlp, 2 threads",
        "",
        " engine                       ms              ratio                     verdict",
        " ──────────────────────────────────────────────────────────────────────────────",
        " ort                        2.04               1.00   ███▊              fastest",
        " tvm,ort with               12.1   5.93 (5.87-6.01)   ██████████████»   slower",
        " Conv|Gemm|MatMul|Softmax",
        " =ort",
        " toy                                                                    failed",
        "",
        " tvm,ort with Conv|Gemm|MatMul|Softmax=ort: not steady after 200 calls",
        " toy: no engine takes 2 of 5 nodes; list another: 'a' (MatMul): toy: none (and 1 more)",
    ]


def test_the_rest_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(180, monkeypatch, verbose=True)
    head = next(line for line in lines if "compile s" in line)
    assert [name for name in bench.SHOWN if name not in head] == []
    row = next(line for line in lines if "108.5 MB" in line)
    assert row.split()[-4:] == ["3", "0.26", "108.5", "MB"]


def test_a_pipe_gets_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    bench.show_group(GROUP, verbose=False)
    _, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["engine", "ms", "ratio", "verdict", *bench.DETAILS, "note"]
    assert [row.count("\t") for row in rows] == [len(bench.DETAILS) + 4] * 3
