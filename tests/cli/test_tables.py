"""Tables of the commands on narrow terminals and in a pipe: of `xrt bench`, and of others."""

from __future__ import annotations

import importlib
import re
from io import StringIO

import pytest
from rich.console import Console

from xrt.bench import BenchCandidate, Group, ReportRow
from xrt.bench.job_server import StartupReport
from xrt.cli import screen
from xrt.measure.statistics import RatioInterval

LONG = "no kernel for float64 inputs of rank 5, and none for an axis that is not the last one"
TABLES = {
    "explain": (
        ("region", "engine", "nodes", "predicted", "known", "took"),
        [("xrt_openvino_12", "openvino", 123, "1,234.5 us", "measured", "1,201.9 us")],
        ("nodes", "predicted", "took"),
        ("region", "known"),
    ),
    "engines": (("engine", "state", "version", "what"), [("ort", "ready", "onnxruntime 1.31.1", LONG)], (), ()),
    "bench": (
        ("engine", "verdict", "ms", "ratio", "compile s", "peak"),
        [("tvm,ort with Conv|Gemm=ort", "slower", "12.1 (11.9-12.4)", "5.93 (5.87-6.01)", "0.26", "108.5 MB")],
        ("ms", "ratio", "compile s", "peak"),
        ("verdict",),
    ),
    "cache": (
        ("entry", "engine", "size", "last used", "inputs", "note"),
        [("0123456789ab", "ort", "1.5 MB", "2026-01-02 03:04", "x: float32[1,3,224,224]", "")],
        ("size",),
        (),
    ),
}


def show(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    console = Console(file=StringIO(), force_terminal=True, no_color=True, width=width, highlight=False, soft_wrap=True)
    monkeypatch.setattr(screen, "out", console)
    columns, rows, numbers, whole = TABLES[name]
    screen.show_table(columns, rows, numbers=numbers, whole=whole)
    assert isinstance(console.file, StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_shown_within_the_width(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = show(name, width, monkeypatch)
    assert max(map(len, lines)) <= width
    columns, rows, numbers, whole = TABLES[name]
    words = " ".join(lines).split()
    output = "".join(words)
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            assert str(cell) in " ".join(words) or str(cell).replace(" ", "") in output or column not in (*numbers, *whole)
            assert {word for word in str(cell).split() if len(word) < 20} <= set(words)


def test_a_row_is_a_block_where_the_columns_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are never broken took all the room, and a column of words was one letter wide, or none."""
    assert [line.rstrip() for line in show("explain", 60, monkeypatch)] == [
        "xrt_openvino_12",
        "  engine: openvino",
        "  nodes: 123",
        "  predicted: 1,234.5 us",
        "  known: measured",
        "  took: 1,201.9 us",
    ]


def test_an_empty_cell_has_no_line_and_an_empty_title_is_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "empty", (("what", "", "value"), [("", "x" * 30, "")], (), ("", "what")))
    assert [line.rstrip() for line in show("empty", 30, monkeypatch)] == ["what", f"  {'x' * 28}", "  xx"]


bench = importlib.import_module("xrt.cli.tune")
REASON = "no engine takes 2 of 5 nodes; list another:\n  'a' (MatMul): toy: none\n  'b' (MatMul): toy: none\n"


def start(**more: object) -> StartupReport:
    facts = {"import_seconds": 0.1, "compile_seconds": 0.26, "first_seconds": 0.003, "alone_seconds": 0.002}
    fields = dict.fromkeys(StartupReport.__dataclass_fields__, 0) | facts
    return StartupReport(**fields | {"regions": ("ort",), "steady": True, "versions": (), "peak_bytes": 108_500_000} | more)  # type: ignore[arg-type]


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
        " engine                                        ms              ratio   verdict",
        " ─────────────────────────────────────────────────────────────────────────────",
        " ort                                         2.04               1.00   fastest",
        " tvm,ort with Conv|Gemm|MatMul|Softmax=ort   12.1   5.93 (5.87-6.01)   slower",
        " toy                                                                   failed",
        "",
        " tvm,ort with Conv|Gemm|MatMul|Softmax=ort: not steady after 200 calls",
        " toy: no engine takes 2 of 5 nodes; list another: 'a' (MatMul): toy: none (and 1 more)",
    ]


def test_the_rest_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(180, monkeypatch, verbose=True)
    head = next(line for line in lines if "compile s" in line)
    assert [name for name in bench.SHOWN_COSTS if name not in head] == []
    row = next(line for line in lines if "108.5 MB" in line)
    assert row.split()[-4:] == ["3", "0.26", "108.5", "MB"]


def test_a_pipe_gets_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    bench.show_group(GROUP, verbose=False)
    _, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["engine", "ms", "ratio", "verdict", *bench.COSTS, "note"]
    assert [row.count("\t") for row in rows] == [len(bench.COSTS) + 4] * 3
