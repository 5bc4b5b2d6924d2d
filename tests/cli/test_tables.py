"""Tables of the commands on a terminal of 60 or 40 columns, and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from xrt.cli import screen

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
    shown = "".join(words)
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            assert str(cell) in " ".join(words) or str(cell).replace(" ", "") in shown or column not in (*numbers, *whole)
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


def run_on_terminal(width: int, folder: Path, *arguments: str) -> list[str]:
    """Return what a command writes to a terminal of that width."""
    main, terminal = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "NO_COLOR", "LINES")}
    environment = kept | {"COLUMNS": str(width), "TERM": "dumb", "XRT_CACHE_DIR": str(folder / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "xrt.cli", *arguments], stdout=terminal, stderr=subprocess.DEVNULL, env=environment, cwd=folder
    ) as process:
        os.close(terminal)
        parts = []
        while True:
            try:
                parts.append(os.read(main, 65536))
            except OSError:  # the terminal's other end is closed
                break
            if not parts[-1]:
                break
    os.close(main)
    assert process.returncode == 0
    return b"".join(parts).decode().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 40])
def test_a_command_on_a_narrow_terminal(width: int, tmp_path: Path) -> None:
    lines = run_on_terminal(width, tmp_path, "engines", "ort")
    assert max(map(len, lines)) <= width
    assert lines[:2] == ["providers", "  default: ('CPUExecutionProvider',)"]


@pytest.mark.slow
def test_a_pipe_does_not_know_the_width(tmp_path: Path) -> None:
    found = {
        subprocess.run(
            [sys.executable, "-m", "xrt.cli", "engines", "ort"],
            capture_output=True,
            check=True,
            env=os.environ | {"COLUMNS": width, "XRT_CACHE_DIR": str(tmp_path)},
        ).stdout
        for width in ("40", "200")
    }
    (out,) = found
    assert out.splitlines()[0] == b"option\tdefault\ttype\tmeaning"
