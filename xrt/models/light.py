"""The nine light models that the ``onnx`` package ships: real networks whose weights are constant fills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from xrt.errors import ModelError, did_you_mean
from xrt.formats.onnx import load
from xrt.models.random_weights import fill_random_weights

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["light_models", "load_light"]

_PREFIX = "light_"


def light_models() -> tuple[str, ...]:
    """Return the names of the light models of the installed ``onnx`` package, sorted."""
    return tuple(sorted(path.stem.removeprefix(_PREFIX) for path in _folder().glob(f"{_PREFIX}*.onnx")))


def load_light(name: str, seed: int = 0) -> Function:
    """Return a light model with seeded random weights in place of its fills; the same seed gives the same bytes.

    The weights take their full size in memory: 575 MB for vgg19. Raises ModelError for an unknown name.
    """
    known = light_models()
    if name not in known:
        raise ModelError(f"there is no light model {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}")
    return fill_random_weights(load(_folder() / f"{_PREFIX}{name}.onnx"), seed)


def _folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
