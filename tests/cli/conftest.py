"""Fixtures of the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Command
from xrt.cache import default_cache
from xrt.cli import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs ``xrt`` in this process and returns exit code, output and errors."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)))
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


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
