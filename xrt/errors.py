"""Every error that XRT raises on purpose, in one tree.

    XRTError
    ├── ModelError (ValueError)            the model is not what it must be
    ├── InputError (ValueError)            the values given to a call do not fit the model
    ├── OptionError (ValueError)           an option is unknown or has an impossible value
    ├── EngineError                        an engine has a problem
    │   ├── UnknownEngine (ValueError)     no engine of that name is registered
    │   ├── EngineUnavailable              registered, but its library is missing or broken
    │   ├── CompileRefused                 the engine declines a function, with the reason
    │   ├── CompileFailed                  the engine's library failed while it compiled
    │   ├── RunFailed (RuntimeError)       the engine failed while it ran, or gave wrong results
    ├── PlanError (ValueError)             no plan satisfies what was asked
    ├── CacheError                         an entry of the cache cannot be read
    ├── BundleError (ValueError)           a bundle cannot be read or written
    │   └── SelfTestFailed                 its example gives other outputs, or none
    ├── PlacementFileError (ValueError)    a lockfile, decision or cost table cannot be read
    │   └── LockError                      a lockfile does not apply, or cannot be made
    ├── CalibrationError (ValueError)      calibration data or a calibration table cannot be used
    ├── BatchJobError (ValueError)         a batch job cannot be begun, continued or finished
    └── DeviceError (ValueError)           the device is unknown or not present
        └── OutOfDeviceMemory (MemoryError)  it has too little free memory

    XRTWarning (UserWarning)
    ├── BudgetWarning                      more threads were requested than there are cores
    ├── CacheWarning                       the cache could not be read or written
    ├── CalibrationWarning                 ranges were calibrated on too little data
    ├── FallbackWarning                    a node runs on another engine than the first choice
    ├── PlacementWarning                   a placement was not measured, or not as requested
    ├── NativeWarning                      XRT's native kernels are not available; NumPy computes
    └── SignatureWarning                   a module drops what it has compiled

A message states the request, the fact and the remedy; it names the object and the most similar names.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "BatchJobError",
    "BudgetWarning",
    "BundleError",
    "CacheError",
    "CacheWarning",
    "CalibrationError",
    "CalibrationWarning",
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
    "PlacementFileError",
    "PlacementWarning",
    "PlanError",
    "RunFailed",
    "SelfTestFailed",
    "SignatureWarning",
    "UnknownEngine",
    "XRTError",
    "XRTWarning",
    "did_you_mean",
    "warn",
]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known word, or an empty string when none is near.

    >>> did_you_mean("ort2", ["toy", "ort"])
    " Did you mean 'ort'?"
    >>> did_you_mean("zebra", ["toy", "ort"])
    ''
    """
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


_PACKAGE = str(Path(__file__).parent)


def warn(message: str, category: type[UserWarning]) -> None:
    """Issue a warning located at the nearest caller outside of the package.

    From Python 3.12 on ``skip_file_prefixes`` does the same.
    """
    level = 1
    frame = sys._getframe()
    passed_over = (_PACKAGE, functools.__file__)  # the latter for a cached_property of the package
    while frame.f_back is not None and frame.f_code.co_filename.startswith(passed_over):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


class XRTError(Exception):
    """Catch this to catch everything that XRT raises on purpose.

    The command ``xrt`` prints such an error as one line; ``xrt --debug ...`` adds the traceback.
    """

    updated: tuple[str, ...] | None = ()
    """The inputs of a call that may have been updated in place in part; None if that is unknown."""


class ModelError(XRTError, ValueError):
    """The model cannot be read, or breaks a rule of the graph.

    Examples: a value is defined twice, an operator has too few inputs, an opset is not declared.

    Remedy: the message names the node or the value. ``xrt inspect MODEL`` reads and checks a file. If
    ``onnx.checker.check_model(model, full_check=True)`` accepts what XRT refuses, report it.
    """


class InputError(XRTError, ValueError):
    """The values of a call do not fit the model's inputs.

    An input is missing or unknown, has another dtype or rank, or has a size that contradicts another size of the same name.
    An ``out=`` buffer has another type or shape, is read-only or not contiguous, or overlaps an input or another buffer.
    ``bind`` cannot read an input where it is. The model updates an input that is read-only. A tensor of strings holds
    something else.

    Remedy: ``m.inputs`` shows the declared inputs. Convert with ``x.astype(...)``; XRT does not convert, since that would
    hide a mistake.
    """


class OptionError(XRTError, ValueError):
    """An option is unknown, its value is impossible, or no engine of the list implements it.

    Remedy: the message lists the known options and the most similar one. Give an option that only one engine implements to
    that engine: ``"tvm{opt_level=2}"``.
    """


class EngineError(XRTError):
    """An engine, as opposed to the model, has a problem: the base of the next six.

    Raised itself where two distributions register one name, or where a class breaks the engine contract.

    Remedy: ``xrt engines`` shows which distribution registers which engine.
    """


class UnknownEngine(EngineError, ValueError):
    """No installed distribution registers an engine of that name.

    Remedy: compare the spelling with the list in the message, or install the distribution that has the engine.
    """


class EngineUnavailable(EngineError):
    """The engine is registered, but its library is missing or does not import.

    Remedy: run the ``pip install`` line of the message. If the library is installed and broken, the cause is chained; ``xrt
    doctor`` prints it with the versions.
    """


class CompileRefused(EngineError):
    """The engine declines a function when it compiles it; the message is the reason.

    A module then assigns the nodes to other engines and warns. You see the error where no engine is left, as the cause of a
    PlanError, or where you call ``compile`` of an engine yourself. ``nodes`` names the nodes that the engine declines,
    where it knows them; an empty tuple means all nodes of the function.

    Remedy: add an engine to the list, or omit ``strict=True``.
    """

    def __init__(self, reason: str, nodes: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.nodes = tuple(nodes)


class CompileFailed(EngineError):
    """The library of an engine failed while it compiled a function; the exception of the library is chained.

    A module then assigns the nodes to other engines and warns.

    Remedy: pin the operator to another engine (``pins=["Conv!=tvm"]``). Report the defect with the output of ``xrt doctor``
    and the region that ``dump_subgraph_dir=`` writes.
    """


class RunFailed(EngineError, RuntimeError):
    """An engine failed while it ran a region, or returned results that contradict the plan.

    The message names region and engine; ``region`` is the name of the region. ``updated`` has the inputs that may have been
    updated in place in part; None where that is not known. A cause is chained. A module moves the region to another engine and
    warns. You see the error where no engine is left, where an update in place cannot be repeated, in a bound call, and with
    ``strict=True``.

    Remedy: look for values that the operator does not define, such as an index out of range. ``xrt run MODEL --engine toy``
    names the node that fails, and its inputs.
    """

    def __init__(self, message: str, region: str = "", updated: tuple[str, ...] | None = None) -> None:
        super().__init__(message)
        self.region = region
        self.updated = updated
        self.has_bad_index = False
        """Whether every engine failed and an index in the inputs is out of range, so that the inputs are the cause."""


class PlanError(XRTError, ValueError):
    """No plan satisfies the request: a pin cannot be kept, or with ``strict=True`` a node is supported by no listed engine.

    Remedy: the message lists the nodes and the reasons, and an installed engine that supports them all, if there is one.
    Add an engine, change the pin, or omit ``strict=True``.
    """

    def __init__(self, message: str, nodes: tuple[str, ...] = ()) -> None:
        """Take the message, and the names of the unsupported nodes if they are the reason."""
        super().__init__(message)
        self.nodes = nodes


class CacheError(XRTError):
    """An entry of the cache cannot be read.

    A call continues without the entry and issues a CacheWarning. You see the error where you read an entry by hand.

    Remedy: ``xrt cache verify`` names the damaged entries; ``xrt cache gc`` removes them.
    """


class BundleError(XRTError, ValueError):
    """A bundle cannot be read or written.

    The file is missing, damaged, of another kind, or of a later format. With ``strict=True``: a region would have to be
    compiled again on this machine. Also: the bundle asks for an engine whose options may name files or code, and the caller
    has not named that engine (``xrt.load(path, engine=...)``). An impossible option of ``xrt.load`` is an OptionError.

    Remedy: the message says which of these it is. Save the bundle again with the version that reads it. Without
    ``strict=True``, XRT compiles again for other engines, versions and processors.
    """


class SelfTestFailed(BundleError):
    """A bundle's example gives other outputs on this machine than those that were saved with it, or cannot be computed.

    The message names the output and the largest difference, which ``difference`` has too; it is None where a call or a check of
    the file failed, whose error is chained.

    Remedy: do not serve from this bundle here. ``xrt verify BUNDLE`` finds the region that differs. A damaged file is to be
    copied again.
    """

    def __init__(self, message: str, difference: float | None = None) -> None:
        super().__init__(message)
        self.difference = difference


class PlacementFileError(XRTError, ValueError):
    """A placement file cannot be read or written: a lockfile, a stored decision or a cost table.

    The file is missing, is no JSON, was merged by hand, has a later format, or breaks the schema. ``file`` is its name, and
    ``position`` the path inside it, such as ``plan[1].at``; both are empty where they are unknown. Files of the cache are
    measured again, with a CacheWarning.

    Remedy: the message names the position and what is expected there. Write a lockfile again with ``xrt lock MODEL -o FILE``.
    """

    def __init__(self, message: str, *, file: str = "", position: str = "") -> None:
        super().__init__(message)
        self.file = file
        self.position = position


class LockError(PlacementFileError):
    """A lockfile does not apply here, or cannot be made.

    With ``strict=True``: it was made for another model, machine, option or engine version. Also: there is nothing to lock,
    because nothing was measured; or a plan of the lockfile does not run.

    Remedy: the message has all differences. Name an engine whose options may name files or code yourself. Make the file
    again with ``xrt lock MODEL -o FILE``. Without ``strict=True`` the placement is measured instead.
    """


class CalibrationError(XRTError, ValueError):
    """Calibration data or a calibration table cannot be used.

    There are no batches; an input or an inner value has NaN or an infinity; the table was made of another model, or cannot be
    read; two tables of different methods are merged. Also: no quantized model keeps the error within the budget.

    Remedy: the message names the batch, the value or the file. Calibrate again with ``m.calibrate(batches)``.
    """


class BatchJobError(XRTError, ValueError):
    """The folder of a batch job's results belongs to another job or process, or the cluster cannot be reached, or lost a part.

    Remedy: continue a job with the arguments and the files of its first run, or write to another folder.
    """


class DeviceError(XRTError, ValueError):
    """The device is unknown or not present, no listed engine runs on it, or an array belongs to another device.

    The last case also concerns buffers and streams.

    Remedy: a device is ``cpu``, ``cuda`` or ``cuda:N``; ``xrt engines`` lists the devices of each engine. CUDA needs CuPy
    (``pip install 'xrt-engine[cuda]'``) and a driver (``nvidia-smi``). Copy an array of another device yourself; XRT does not.
    """


class OutOfDeviceMemory(DeviceError, MemoryError):
    """A device has less free memory than was requested.

    The message says how much was requested, and for what: the weights or a run of a region with its engine, the copy of a
    value, a buffer of a bound call, a recorded call, or a region in ``verify``, ``bisect`` or a measurement. The module can
    be called again: no region is moved and nothing is remembered.

    Remedy: use smaller inputs, release other arrays of the device, or move nodes to the CPU with ``devices={"ort": "cpu"}``
    and pins.
    """


class XRTWarning(UserWarning):
    """Catch or filter this to treat every warning of XRT.

    Warnings use Python's ``warnings`` and point at the line of your program. Raised itself where the environment variable
    ``XRT_LOG`` is neither ``info`` nor ``debug``.
    """


class BudgetWarning(XRTWarning):
    """More ``threads`` were requested than this process has cores; XRT uses as many threads as cores.

    The cores are those that the process may run on, or the quota of its container where that is smaller.

    Remedy: omit ``threads``, or give the process more cores. ``xrt doctor`` shows them.
    """


class CacheWarning(XRTWarning):
    """The cache on disk could not be read or written; the call continues and compiles what it needs.

    The directory is not writable, the disk is full, an entry is damaged, or ``XRT_CACHE``, ``XRT_CACHE_SIZE`` or
    ``XRT_CACHE_DIR`` has an impossible value. Damaged files of placement (costs, decisions, engine states, tuning records)
    are measured again and replaced. A directory that another user may write to is not used, because entries may contain
    native code. Issued once per cache.

    Remedy: the message names the file or directory. ``xrt cache verify`` checks all entries, ``xrt cache gc`` removes
    damaged ones, ``XRT_CACHE_DIR`` selects another directory, ``XRT_CACHE=off`` disables it. Restrict a directory to
    yourself with ``chown`` and ``chmod 700``; clear it if others could write to it.
    """


class CalibrationWarning(XRTWarning):
    """Ranges were calibrated on too little data for the method: one batch, where it needs the statistics of several.

    Remedy: calibrate on more batches, or with ``method="minmax"``.
    """


class FallbackWarning(XRTWarning):
    """Nodes run on another engine than the first choice; ``m.explain()`` has the reasons.

    They run on ``toy``, which was not listed; or an engine refused them at compile, failed to run them, or returned results
    that ``check=`` found wrong. Also: a bundle is compiled again, because this machine has another version, processor or
    thread count, or lacks an engine.

    Remedy: name ``toy`` in the list to accept it, or pass ``strict=True`` to make it an error.
    """


class NativeWarning(XRTWarning):
    """XRT's native kernels are not available; ``toy`` computes the same with NumPy, and is slower.

    The library was not built, because no C++ compiler was found when XRT was installed, or it does not open here. Issued
    once per process, when ``toy`` first compiles.

    Remedy: install a compiler and then XRT again; the message has both lines. ``engine="toy{native=off}"`` selects NumPy
    without a warning.
    """


class PlacementWarning(XRTWarning):
    """A placement was not measured, or not with every engine of the list.

    An engine named together with ``"auto"`` is missing or broken; a registered engine is broken; or nothing could be
    measured within the budget, and the order of the list decides. The message has the reason for each engine and the engine
    that is used. Also: a lockfile does not apply, and the placement is measured. With ``strict=True`` the last case is a
    LockError, and a missing engine an EngineUnavailable.

    Remedy: the message names the engine and the way to repair it, or the budget. ``m.explain()`` shows how the plan was
    chosen; ``xrt tune MODEL --budget 60s`` searches longer.
    """


class SignatureWarning(XRTWarning):
    """What a module compiled for its signatures exceeds ``max_specialization_bytes``, or calls keep waiting to compile new sizes.

    In the first case the module drops the least recently used.

    Remedy: pad inputs to a few shapes with ``buckets=``, use engines that support symbolic dims, or raise
    ``max_specialization_bytes``.
    """
