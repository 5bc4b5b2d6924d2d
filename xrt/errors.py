"""Every error that XRT raises on purpose, in one tree.

    XRTError
    ├── ModelError (ValueError)            the model is not what it must be
    ├── InputError (ValueError)            the values given to a call do not fit the model
    ├── OptionError (ValueError)           an option is unknown or has an impossible value
    ├── EngineError
    │   ├── UnknownEngine (ValueError)     no engine of that name is registered
    │   ├── EngineUnavailable              registered, but its library is missing or broken
    │   ├── CompileRefused                 the engine declines a function, with the reason
    │   ├── CompileFailed                  the engine's library failed while it compiled
    │   └── RunFailed (RuntimeError)       the engine failed while it ran, or gave wrong results
    ├── PlanError (ValueError)             no plan satisfies what was asked
    ├── CacheError
    ├── BundleError (ValueError)
    ├── LockError (ValueError)             a lock cannot be read, or does not hold any more
    └── DeviceError (ValueError)           the device is unknown, or not at hand
        └── OutOfDeviceMemory (MemoryError)

    XRTWarning (UserWarning)
    ├── BudgetWarning                      more threads were asked for than there are cores
    ├── CacheWarning                       the cache could not serve, and the run went on without it
    ├── FallbackWarning                    a node went to another engine than the first choice
    ├── PlacementWarning                   a placement was not measured, or not as asked
    ├── NativeWarning                      XRT's native kernels were not built, NumPy's serve
    └── SignatureWarning                   a module has compiled suspiciously many signatures

A message says what was asked, what is the case, and what to do next; it names the object and its nearest neighbours.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "BudgetWarning",
    "BundleError",
    "CacheError",
    "CacheWarning",
    "CompileFailed",
    "CompileRefused",
    "DeviceError",
    "EngineError",
    "EngineUnavailable",
    "FallbackWarning",
    "InputError",
    "LockError",
    "ModelError",
    "NativeWarning",
    "OptionError",
    "OutOfDeviceMemory",
    "PlacementWarning",
    "PlanError",
    "ReferenceWarning",
    "RunFailed",
    "SignatureWarning",
    "UnknownEngine",
    "XRTError",
    "XRTWarning",
    "did_you_mean",
    "warn",
]


class XRTError(Exception):
    """Catch this to catch everything that XRT raises on purpose."""


class ModelError(XRTError, ValueError):
    """The model cannot be read, or breaks a rule of the graph."""


class InputError(XRTError, ValueError):
    """The values given to a call do not fit the model's declared inputs."""


class OptionError(XRTError, ValueError):
    """An option is unknown, or its value is impossible or not honoured by the engine."""


class EngineError(XRTError):
    """Something about an engine, as opposed to the model."""


class UnknownEngine(EngineError, ValueError):
    """No engine of that name is registered."""


class EngineUnavailable(EngineError):
    """The engine is registered, but its library is missing or does not import."""


class CompileRefused(EngineError):
    """The engine declines this function; the message is the reason, and the nodes are placed elsewhere.

    ``nodes`` names those that the engine cannot take, where it knows; empty means all of the function's.
    """

    def __init__(self, reason: str, nodes: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.nodes = tuple(nodes)


class CompileFailed(EngineError):
    """The engine's library failed while it compiled a function; the cause is chained."""


class RunFailed(EngineError, RuntimeError):
    """An engine failed while it ran, or gave results that it may not give; a cause is chained.

    ``region`` names the launch, where it is known.
    """

    def __init__(self, message: str, region: str = "") -> None:
        super().__init__(message)
        self.region = region


class PlanError(XRTError, ValueError):
    """No plan satisfies what was asked (``strict=True``, or a pin that cannot be kept)."""

    def __init__(self, message: str, nodes: tuple[str, ...] = ()) -> None:
        """Take the message, and the names of the nodes that nobody takes, where that is the reason."""
        super().__init__(message)
        self.nodes = nodes


class CacheError(XRTError):
    """The cache cannot serve; a run goes on without it wherever it can."""


class BundleError(XRTError, ValueError):
    """A saved module cannot be read: damaged, too new, or lacking what it needs."""


class LockError(XRTError, ValueError):
    """A lock file cannot be read, or is not for this model, machine or version, and may not be made anew."""


class DeviceError(XRTError, ValueError):
    """The device is unknown, or not at hand."""


class OutOfDeviceMemory(DeviceError, MemoryError):
    """A device has less memory free than was asked for; the message says how much, and by whom. Nothing else is broken."""


class XRTWarning(UserWarning):
    """Catch or filter this to treat everything that XRT warns of."""


class BudgetWarning(XRTWarning):
    """More threads were asked for than this process has cores; as many threads as cores are used."""


class CacheWarning(XRTWarning):
    """The compile cache on disk could not be read or written; what it should have held was compiled."""


class FallbackWarning(XRTWarning):
    """Nodes run on another engine than the first choice; ``explain()`` has the reasons."""


class NativeWarning(XRTWarning):
    """XRT was installed without its native kernels; Python kernels compute the same, and are slower."""


class PlacementWarning(XRTWarning):
    """A placement that was to be measured was not, or without an engine of the list; the order of the list decides then."""


class ReferenceWarning(XRTWarning):
    """An engine differs from the reference, and other engines agree with it; its result is kept."""


class SignatureWarning(XRTWarning):
    """A module was called with so many different signatures that it compiles more than it runs."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known word, or an empty string when none is near.

    >>> did_you_mean("ort2", ["toy", "ort"])
    " Did you mean 'ort'?"
    >>> did_you_mean("zebra", ["toy", "ort"])
    ''
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


_PACKAGE = str(Path(__file__).parent)


def warn(message: str, category: type[XRTWarning]) -> None:
    """Issue a warning located at the nearest caller outside of the package.

    From Python 3.12 on ``skip_file_prefixes`` does the same.
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
