"""All shipped models by name: the light models of the ``onnx`` package, and models written in code, whose sizes can be chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError, OptionError, did_you_mean
from xrt.graph.types import LARGEST_EXTENT
from xrt.models import networks, transformers
from xrt.models.light import light_models, load_light

if TYPE_CHECKING:
    from xrt.graph import Function


_BUILDERS: tuple[Callable[..., Function], ...] = (
    *(networks.chain, networks.conv_chain, networks.conv_tail, networks.detector, networks.dlrm, networks.gather_softmax),
    *(networks.mlp, networks.mobilenet, networks.reductions, networks.softmax_chain, networks.speech, networks.unet),
    *(transformers.bert, transformers.gpt, transformers.vit),
)
_MODEL_BUILDERS = {builder.__name__: builder for builder in _BUILDERS}


def names() -> tuple[str, ...]:
    """List the names of all shipped models, sorted."""
    return tuple(sorted((*_MODEL_BUILDERS, *light_models())))


def list_model_sizes(name: str) -> dict[str, int]:
    """List the size parameters of a model with their defaults. Raises ModelError for an unknown name.

    The light models of the onnx package have no parameters.

    >>> list_model_sizes("mlp")
    {'layers': 4, 'features': 1024, 'hidden': 4096, 'classes': 1000, 'batch': 1}
    """
    if name not in names():
        raise ModelError(f"there is no model {name!r}.{did_you_mean(name, names())} There are: {', '.join(names())}")
    if name not in _MODEL_BUILDERS:
        return {}
    parameters = inspect.signature(_MODEL_BUILDERS[name]).parameters.values()
    # Sizes are the keyword-only parameters; `seed` is positional.
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def load(name: str, seed: int = 0, **sizes: int) -> Function:
    """Load a shipped model with seeded weights; the same seed and sizes give the same bytes.

    By default, models written in code have the sizes of the original networks: `bert` takes 440 MB. Raises ModelError for an
    unknown name, and OptionError for an unknown size or one that is not a positive integer.
    """
    check_sizes(name, sizes)
    return _MODEL_BUILDERS[name](seed, **sizes) if name in _MODEL_BUILDERS else load_light(name, seed)


def check_sizes(name: str, sizes: Mapping[str, Any]) -> None:
    """Raise ModelError for an unknown name, OptionError for an unknown or invalid size."""
    declared = list_model_sizes(name)
    for size, value in sizes.items():
        if size not in declared:
            hint = f"its sizes are {', '.join(declared)}" if declared else "it comes in one size"
            raise OptionError(f"model {name!r} has no size {size!r}; {hint}.{did_you_mean(size, declared)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{size} of model {name!r} must be a positive integer; got {value!r}")
        if value > LARGEST_EXTENT:
            raise OptionError(f"{size} of model {name!r} cannot be {value}: an extent is at most {LARGEST_EXTENT}")
