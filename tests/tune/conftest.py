"""Fixtures of the tests of tuning."""

from __future__ import annotations

import pytest

from xrt.tune.walls import Here


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process: the start of a worker takes longer than all that is measured."""
    monkeypatch.setattr("xrt.tune.search.way_of", lambda engine, limits: Here(engine))
