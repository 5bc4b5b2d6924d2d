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


_BY_CODE: dict[str, Callable[..., Function]] = {
    "bert": transformers.bert,
    "chain": networks.chain,
    "conv_chain": networks.conv_chain,
    "conv_tail": networks.conv_tail,
    "detector": networks.detector,
    "dlrm": networks.dlrm,
    "gather_softmax": networks.gather_softmax,
    "gpt": transformers.gpt,
    "mlp": networks.mlp,
    "mobilenet": networks.mobilenet,
    "reductions": networks.reductions,
    "softmax_chain": networks.softmax_chain,
    "speech": networks.speech,
    "unet": networks.unet,
    "vit": transformers.vit,
}


def names() -> tuple[str, ...]:
    """Names of all shipped models, sorted."""
    return tuple(sorted((*_BY_CODE, *light_models())))


def list_model_sizes(name: str) -> dict[str, int]:
    """The size parameters of a model with their defaults. Raises ModelError for an unknown name.

    Empty for light models, those that the onnx package ships: they have one size each.

    >>> list_model_sizes("mlp")
    {'layers': 4, 'features': 1024, 'hidden': 4096, 'classes': 1000, 'batch': 1}
    """
    if name not in names():
        raise ModelError(f"there is no model {name!r}.{did_you_mean(name, names())} There are: {', '.join(names())}")
    if name not in _BY_CODE:
        return {}
    parameters = inspect.signature(_BY_CODE[name]).parameters.values()
    # Sizes are the keyword-only parameters; `seed` is positional.
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def load(name: str, seed: int = 0, **sizes: int) -> Function:
    """Load a shipped model with seeded weights; the same seed and sizes give the same bytes.

    By default, models written in code have the sizes of the original networks: `bert` takes 440 MB. Raises ModelError for an
    unknown name, OptionError for a size that the model does not have or that is not a positive integer.
    """
    check_sizes(name, sizes)
    return _BY_CODE[name](seed, **sizes) if name in _BY_CODE else load_light(name, seed)


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
