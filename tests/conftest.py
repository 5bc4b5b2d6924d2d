"""Settings of all tests: hypothesis does not judge by the clock of a loaded machine, and CI tries the same examples each time.

No test touches the user's own cache: each process of the tests has a directory of its own, which its children share.
"""

from __future__ import annotations

import functools
import os
import tempfile

import pytest
from hypothesis import settings

from xrt.errors import DeviceError
from xrt.runtime.devices import device

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("there", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("there" if os.environ.get("CI") else "here")

_cache = tempfile.TemporaryDirectory(prefix="xrt-tests-")
os.environ["XRT_CACHE_DIR"] = _cache.name
os.environ.pop("XRT_CACHE", None)
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # for tests that import onnxruntime before XRT does
os.environ.pop("XRT_CACHE_SIZE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `cuda` where there is no such device: collected everywhere, skipped with one reason."""
    if reason := why_no_cuda():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason=reason))


@functools.cache
def why_no_cuda() -> str:
    """Return why there is no CUDA device; empty where there is one."""
    try:
        device("cuda")
    except DeviceError as error:
        return f"no CUDA device: {error}"
    return ""


@pytest.fixture
def small_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk cache keep what `ort` compiles of models of any size."""
    monkeypatch.setattr("xrt.engines.ort.engine.WORTH_SAVING", 1)
