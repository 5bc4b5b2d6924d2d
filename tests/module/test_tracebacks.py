"""The traceback of an error shows the user's code, and at most two frames of XRT."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import xrt
from tests.module.small_models import X, relu
from xrt.errors import XRTError

PACKAGE = str(Path(xrt.__file__).parent)

MISTAKES: dict[str, Callable[[], object]] = {
    "call": lambda: xrt.XRTModule(relu(), engine="toy")(X.astype("float64")),
    "call again": lambda: [m := xrt.XRTModule(relu(), engine="toy"), m(X), m(np.ones(3, "float32"))],
    "call by name": lambda: xrt.XRTModule(relu(), engine="toy")(nothing=X),
    "constructor": lambda: xrt.XRTModule(relu(), engine="nothing"),
    "option": lambda: xrt.XRTModule(relu(), engine="toy", thread=1),  # type: ignore[call-arg]  # the mistake under test
    "plan": lambda: xrt.XRTModule(relu(), engine="toy", pins=["Softmax=toy"]).plan,
    "compile": lambda: xrt.XRTModule(relu(), engine="toy").compile(X, X),
    "bind": lambda: xrt.XRTModule(relu(), engine="toy").bind(X, X),
    "verify": lambda: xrt.XRTModule(relu(), engine="toy").verify(X, X),
}


def frames_of_xrt(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_shows_at_most_two_frames_of_xrt(name: str) -> None:
    with pytest.raises(XRTError) as caught:
        MISTAKES[name]()
    assert 1 <= len(frames_of_xrt(caught.value)) <= 2


def test_all_frames_are_shown_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XRT_TRACEBACK", "full")
    with pytest.raises(XRTError) as caught:
        MISTAKES["call"]()
    assert len(frames_of_xrt(caught.value)) > 2
