"""Fixtures of the tests of tuning."""

from __future__ import annotations

import pytest

from xrt.placement.profiler import LocalRunner


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process: the start of a worker takes longer than all that is measured."""
    monkeypatch.setattr("xrt.placement.autotune.choose_runner", lambda engine, limits: LocalRunner(engine))
