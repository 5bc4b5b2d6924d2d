"""Engine lists for models of PyTorch: who runs what has no ONNX form, and which engine is used where none is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines import names, probe
from xrt.engines.contract.registry import list_by_rank
from xrt.errors import OptionError
from xrt.graph.opaque_call import DOMAIN

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.module.options import ModuleOptions

__all__ = ["add_torch_engine", "check_sizes_closed", "choose_default_engines"]


def check_sizes_closed(settings: ModuleOptions) -> None:
    """Raise OptionError for buckets=, which a module of PyTorch does not support."""
    if settings.buckets is not None:
        raise OptionError(
            "buckets= is not for a module of PyTorch, whose parameters may change while programs are made between calls; "
            "pass XRTModule(xrt.from_torch(module, args), ...), and leave the parameters as they are"
        )


def add_torch_engine(engine: Any, function: Function, *, is_strict: bool) -> Any:
    """Return the engines with ``torch`` at the end where the Function has opaque nodes and no engine of the list is it.

    A strict list and ``"auto"`` stay as they are, and so does None: the default engine supports the whole Function.
    """
    if engine is None:
        return None
    listed = [engine] if isinstance(engine, str) or not isinstance(engine, Sequence) else list(engine)
    named = [one if isinstance(one, str) else getattr(one, "name", "") for one in listed]
    if is_strict or "auto" in named or any(one.partition("{")[0] == "torch" for one in named):
        return engine
    if all(node.domain != DOMAIN for _, node in function.walk()) or not _is_ready("torch"):
        return engine
    return [*listed, "torch"]


def choose_default_engines() -> list[str]:
    """Return the engines of a compiled graph where the user names none: the first by rank that is ready."""
    return [next(name for name in list_by_rank() if _is_ready(name))]


def _is_ready(name: str) -> bool:
    return name in names() and probe(name).state == "ready"
