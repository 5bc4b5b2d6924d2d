"""Fixtures of the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from xrt.cache import default_cache


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new cache directory for this test. The cache in memory is cleared before and after the test."""
    yield from use_cache(tmp_path / "cache", monkeypatch)


@pytest.fixture
def cache_of_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory that the tests of a module share. The cache in memory is cleared before and after each test."""
    yield from use_cache(place / "cache", monkeypatch)


def use_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XRT_CACHE_DIR", str(folder))
    default_cache.cache_clear()
    yield folder
    default_cache.cache_clear()
