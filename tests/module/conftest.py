"""What several tests of modules need."""

from __future__ import annotations

import pytest

from xrt.placement.profiler import LocalRunner


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process: workers are tested elsewhere."""
    monkeypatch.setattr("xrt.placement.autotune.choose_runner", lambda engine, limits: LocalRunner(engine))
