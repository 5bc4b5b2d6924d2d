"""What several tests of commands need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from xrt.cache import default_cache


@pytest.fixture
def cache_of_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what is cached in the folder that the module's tests share, and nothing of it in memory before and after a test."""
    monkeypatch.setenv("XRT_CACHE_DIR", str(place / "cache"))
    default_cache.cache_clear()
    yield
    default_cache.cache_clear()
