"""Tables of the commands on narrow terminals and in a pipe: of `xrt bench`, and of others."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from tests.bench.test_page import group
from xrt.cli import screen, tune

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
}


def printed(width: int, monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]) -> list[str]:
    """Return the lines that are written to a terminal of that width."""
    console = Console(file=StringIO(), force_terminal=True, no_color=True, width=width, highlight=False, soft_wrap=True)
    for module in (tune, screen):
        monkeypatch.setattr(module, "out", console)
    write()
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()]


def show(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    columns, rows, numbers, whole = TABLES[name]
    return printed(width, monkeypatch, lambda: screen.show_table(columns, rows, numbers=numbers, whole=whole))


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
    assert show("explain", 60, monkeypatch) == [
        "xrt_openvino_12",
        "  engine: openvino",
        "  nodes: 123",
        "  predicted: 1,234.5 us",
        "  known: measured",
        "  took: 1,201.9 us",
    ]


def test_an_empty_cell_has_no_line_and_an_empty_title_is_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "empty", (("what", "", "value"), [("", "x" * 30, "")], (), ("", "what")))
    assert show("empty", 30, monkeypatch) == ["what", f"  {'x' * 28}", "  xx"]


GROUP = group("mlp")
NOTES = [
    " tvm,ort with Conv|MatMul=ort: not steady after 21 calls",
    " xla: differs in 2 of 1000 elements, by 0.31",
    " toy: strict: 2 nodes are on no engine LRN_1 (LRN): the library computes it wrongly (and 1 more)",
    " nobody: the process ended (SIGSEGV): it said nothing",
]


def test_one_table_fits_80_columns_and_notes_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, head, _, *rows = printed(80, monkeypatch, lambda: tune.show_group(GROUP, verbose=False))
    assert (first, head.split()) == ("mlp, 2 threads", ["engine", "ms", "ratio", "verdict"])
    assert rows[2].split() == ["ort", "3.283", "1.22", "(1.18-1.22)", "slower"]
    assert rows[8:] == ["", *NOTES]
    assert max(map(len, rows[:8])) <= 80


def test_the_rest_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(180, monkeypatch, lambda: tune.show_group(GROUP, verbose=True))
    head = next(line for line in lines if "compile s" in line)
    assert [name for name in tune.SHOWN_COSTS if name not in head] == []
    row = next(line for line in lines if "311.0 MB" in line)
    assert row.split()[-5:] == ["12.4", "1.72", "311.0", "MB", "2.4e-06"]


def test_a_pipe_gets_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    tune.show_group(GROUP, verbose=False)
    _, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["engine", "ms", "ratio", "verdict", *tune.COSTS, "note"]
    assert [row.count("\t") for row in rows] == [len(tune.COSTS) + 4] * len(GROUP.rows)
