"""What several tests of modules need."""

from __future__ import annotations

import pytest

from xrt.placement import TuningBudget
from xrt.placement.runners import LocalRunner


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, and calibrate nothing: both are tested elsewhere."""
    monkeypatch.setattr("xrt.placement.session.choose_runner", lambda engine, limits: LocalRunner(engine))
    monkeypatch.setattr("xrt.placement.autotune.BOUNDS", TuningBudget(calibration=0.0))
