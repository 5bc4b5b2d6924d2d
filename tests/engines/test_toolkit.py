"""The toolkit for authors of engines: texts of errors and aliases of memory."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from xrt.engines.toolkit.libraries import remove_noise, shorten
from xrt.engines.toolkit.scatters import make_writable_alias


def test_noise_is_removed_from_one_line() -> None:
    text = "Exception from src/core.cpp:105:\n  Check 'ok' failed at a.cpp:1:\n\tNo rule for: Net.  "
    assert remove_noise(text, (r"Exception from \S+:\d+: ", r"Check '.*?' failed at \S+:\d+: ")) == "No rule for: Net"
    assert remove_noise("Check failed at a.cpp:1:", (r"Check failed at \S+:\d+: ",)) == ""


@pytest.mark.parametrize(("limit", "cut"), [(6, "abcdef"), (5, "ab..."), (3, "...")])
def test_a_long_text_is_cut_within_the_limit(limit: int, cut: str) -> None:
    assert shorten("abcdef", limit) == cut


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_an_alias_has_the_memory_and_may_be_written_to(dtype: type, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    array.flags.writeable = False
    alias = make_writable_alias(array)
    assert (alias.dtype, alias.shape, alias.flags.writeable, alias.ctypes.data) == (array.dtype, shape, True, array.ctypes.data)
    alias[...] = 0
    assert not array.any()


@pytest.mark.slow
def test_an_alias_keeps_its_owner() -> None:
    class Owner:
        pass

    owner = Owner()
    alias = make_writable_alias(np.ones(3, np.float32), owner)
    lives = weakref.ref(owner)
    del owner
    gc.collect()
    assert lives() is not None
    del alias
    gc.collect()
    assert lives() is None
