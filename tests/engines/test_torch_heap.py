"""Memory that PyTorch frees in a call stays with the process for the next one, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from xrt.engines.torch import heap

CALLS = """
import resource
import numpy as np
import xrt
from xrt import ops

class Chain(xrt.Graph):
    def build(self, x):
        kept = [x + float(k) for k in range(8)]  # 4 MB each
        while len(kept) > 1:
            kept = [a * b for a, b in zip(kept[::2], kept[1::2])]
        return ops.ReduceSum(kept[0], keepdims=0)

x = np.ones((1024, 1024), np.float32)
with xrt.XRTModule(Chain().trace(x), "torch", strict=True, threads=1) as m:
    for _ in range(5):
        m(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        m(x)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""
PAGES = 8 * 1024
"""Of the values that are alive at once."""


def count_faults(**more: str) -> int:
    """Return how many pages the system gives in a call, in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    program = f"import sys; sys.path[:0] = {sys.path!r}\n{CALLS}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env={**clean, **more}, check=True, capture_output=True, text=True
    )
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_call_gets_the_pages_of_the_call_before() -> None:
    assert count_faults() < PAGES // 8


@pytest.mark.slow
def test_what_the_environment_says_holds() -> None:
    assert count_faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > PAGES // 2


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_nothing_is_set_for_little_or_against_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not heap.keep_freed_memory(heap.LEAST - 1)
    monkeypatch.setenv(name, "1000000")
    assert not heap.keep_freed_memory(heap.LEAST)
    monkeypatch.delenv(name)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=128")
    assert not heap.keep_freed_memory(heap.LEAST)
