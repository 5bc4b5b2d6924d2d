"""Fixtures that reset Dynamo for each test and record the Functions that torch.compile creates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from xrt.frontends.torch import backend
from xrt.graph import Function


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    """Reset Dynamo, let it trace recurrent layers, and ignore PyTorch's deprecation warnings about itself."""
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch._dynamo.config.patch(allow_rnn=True):
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category)
        yield
    torch._dynamo.reset()


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> list[Function]:
    """The Functions that torch.compile has created from graphs so far, in order."""
    functions: list[Function] = []
    original = backend.lower_graph

    def lower_graph(*args: Any) -> Any:
        captured = original(*args)
        functions.append(captured.function)
        return captured

    monkeypatch.setattr(backend, "lower_graph", lower_graph)
    return functions
