"""What `xrt explain` shows of a plan that was chosen by measurement: on a narrow terminal, and in a pipe."""

from __future__ import annotations

import importlib
import re
from io import StringIO

import pytest
from rich.console import Console

from tests.placement.test_account import account, table
from xrt.cli import screen
from xrt.placement import CostReport, MissingSupport

explain = importlib.import_module("xrt.cli.run")


@pytest.fixture
def told() -> CostReport:
    found = account(table())
    return CostReport(found.predicted, found.measured, found.parts, unlocks=(MissingSupport("Cos", "ort", 2, 1.5e-3),))


def test_no_line_is_wider_than_a_narrow_terminal(told: CostReport, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=StringIO(), force_terminal=True, no_color=True, width=60, highlight=False, soft_wrap=True)
    monkeypatch.setattr(screen, "out", console)
    explain.show_costs(told)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 60
    text = "\n".join(lines)
    for word in ("predicted 6.01 ms for a call; it took 6.5 ms", "measured", "1.5 ms"):
        assert word in text


def test_a_pipe_gets_a_row_per_line(told: CostReport, capsys: pytest.CaptureFixture[str]) -> None:
    explain.show_costs(told)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "\t" in line]
    assert rows[0] == ["region", "engine", "nodes", "predicted", "known", "took"]
    assert rows[1] == ["xrt_ort_0", "ort", "2", "1 ms", "measured", "1.1 ms"]
    assert rows[-1] == ["Cos", "ort", "2", "1.5 ms"]


def test_of_nothing_known_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    explain.show_costs(CostReport(None, 1.0))
    assert capsys.readouterr().out == ""
