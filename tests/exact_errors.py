"""Assert the whole text of an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises_exactly(kind: type[BaseException], text: str) -> Iterator[None]:
    """Assert that the block raises an error of this type with exactly this text."""
    with pytest.raises(kind) as caught:
        yield
    assert str(caught.value) == text, str(caught.value)
