"""All errors and warnings of XRT; docs/reference/errors.md shows the tree of classes.

Each message states what was requested, why it failed and what to do. For an unknown name it suggests the most similar one.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A hint `` Did you mean 'x'?`` with the most similar candidate, or an empty string if none is similar.

    >>> did_you_mean("ort2", ["toy", "ort"])
    " Did you mean 'ort'?"
    >>> did_you_mean("zebra", ["toy", "ort"])
    ''
    """
    import difflib  # only errors need it

    matches = difflib.get_close_matches(word, list(candidates), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


_PACKAGE = str(Path(__file__).parent)


def warn(message: str, category: type[UserWarning]) -> None:
    """Issue a warning that points at the nearest caller outside the package.

    Equivalent to ``skip_file_prefixes`` of Python 3.12.
    """
    level = 1
    frame = sys._getframe()
    skipped = (_PACKAGE, functools.__file__)  # functools, for cached properties
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


class XRTError(Exception):
    """The base class of all errors that XRT raises deliberately.

    The command ``xrt`` prints such an error as one line; ``xrt --debug ...`` adds the traceback.
    """

    updated: tuple[str, ...] | None = ()
    """Inputs of the call that may have been partially updated in place; None if unknown."""


class ModelError(XRTError, ValueError):
    """The model cannot be read, or violates a rule of the graph.

    Examples: a value is defined twice, an operator has too few inputs, an opset is not declared.

    Remedy: the message names the node or the value. ``xrt inspect MODEL`` reads and checks a file. If
    ``onnx.checker.check_model(model, full_check=True)`` accepts a model that XRT rejects, report it.
    """


class DataDependentError(ModelError):
    """A module of PyTorch branches on a value, or has a data-dependent size, so one graph cannot represent it.

    Remedy: write the branch with ``torch.cond``, or run the module by ``torch.compile(module, backend="xrt")``, which splits
    it there.
    """


class InputError(XRTError, ValueError):
    """The values of a call do not fit the model's inputs.

    An input is missing or unknown, has another dtype or rank, or a size that contradicts another size of the same name. An
    ``out=`` buffer has another type or shape, is read-only or not contiguous, or overlaps an input or another buffer. ``bind``
    cannot read an input in place. The model updates an input that is read-only. A string tensor contains other objects.

    Remedy: ``m.inputs`` shows the declared inputs. Convert with ``x.astype(...)``; XRT does not convert, since that would
    hide a mistake.
    """


class OptionError(XRTError, ValueError):
    """An option is unknown, its value is invalid, or no engine of the list implements it.

    Remedy: the message lists the known options and the most similar one. Pass an option that only one engine implements to
    that engine: ``"tvm{opt_level=2}"``.
    """


class EngineError(XRTError):
    """An engine, as opposed to the model, has a problem: the base class of the next five errors.

    Raised directly if two distributions register the same name, or if a class violates the engine contract.

    Remedy: ``xrt engines`` shows which distribution registers which engine.
    """


class UnknownEngine(EngineError, ValueError):
    """No installed distribution registers an engine of that name.

    Remedy: compare the spelling with the list in the message, or install the distribution that contains the engine.
    """


class EngineUnavailable(EngineError):
    """The engine is registered, but its library is missing or cannot be imported.

    Remedy: run the ``pip install`` line of the message. If the library is installed but broken, the cause is chained; ``xrt
    doctor`` prints it with the versions.
    """


class CompileRefused(EngineError):
    """The engine does not support a function, found while compiling it; the message is the reason.

    A module then assigns the nodes to other engines and warns. You see the error if no engine is left, as the cause of a
    PlanError, or if you call ``compile`` of an engine yourself. ``nodes`` are the unsupported nodes, if known; an empty tuple
    means all nodes of the function.

    Remedy: add an engine to the list, or omit ``strict=True``.
    """

    def __init__(self, reason: str, nodes: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.nodes = tuple(nodes)


class CompileFailed(EngineError):
    """The library of an engine failed while compiling a function; its exception is chained.

    A module then assigns the nodes to other engines and warns.

    Remedy: pin the operator to another engine (``pins=["Conv!=tvm"]``). Report the defect with the output of ``xrt doctor``
    and the region that ``dump_subgraph_dir=`` writes.
    """


class RunFailed(EngineError, RuntimeError):
    """An engine failed while running a region, or returned results that contradict the plan.

    The message names region and engine; ``region`` is the name of the region. ``updated`` are the inputs that may have been
    partially updated in place; None if unknown. A cause is chained. A module moves the region to another engine and warns. You
    see the error if no engine is left, if an update in place cannot be repeated, in a bound call, and with ``strict=True``.

    Remedy: look for values that the operator does not define, such as an index out of range. ``xrt run MODEL --engine toy``
    names the node that fails, and its inputs.
    """

    def __init__(self, message: str, region: str = "", updated: tuple[str, ...] | None = None) -> None:
        super().__init__(message)
        self.region = region
        self.updated = updated
        self.has_bad_index = False
        """Whether every engine failed because an index in the inputs is out of range."""


class PlanError(XRTError, ValueError):
    """No plan satisfies the request: a pin cannot be satisfied, or no listed engine supports a node with ``strict=True``.

    Remedy: the message lists the nodes and the reasons. Add an engine that supports them, change the pin, or omit
    ``strict=True``.
    """

    def __init__(self, message: str, nodes: tuple[str, ...] = ()) -> None:
        """``nodes`` are the names of unsupported nodes, if they are the reason."""
        super().__init__(message)
        self.nodes = nodes


class CacheError(XRTError):
    """An entry of the cache cannot be read.

    A call continues without the entry and issues a CacheWarning. You see the error if you read an entry directly.

    Remedy: ``xrt cache verify`` lists the damaged entries; ``xrt cache gc`` removes them.
    """


class BundleError(XRTError, ValueError):
    """A bundle cannot be read or written.

    The file is missing, damaged, of another kind, or of a later format. With ``strict=True``: a region would have to be
    compiled again on this machine. Also: the bundle contains an engine whose options may refer to files or code, and the caller
    did not name that engine (``xrt.load(path, engine=...)``). An invalid option of ``xrt.load`` is an OptionError.

    Remedy: the message states which of these applies. Save the bundle again with the version that reads it. Without
    ``strict=True``, XRT compiles again for other engines, versions and processors.
    """


class SelfTestFailed(BundleError):
    """A bundle's example gives other outputs on this machine than the saved ones, or cannot be computed.

    The message states the output and the largest difference, which is also in ``difference``; it is None if a call or a check of
    the file failed, with that error chained.

    Remedy: do not serve from this bundle here. ``xrt verify BUNDLE`` finds the region that differs. Copy a damaged file again.
    """

    def __init__(self, message: str, difference: float | None = None) -> None:
        super().__init__(message)
        self.difference = difference


class PlacementFileError(XRTError, ValueError):
    """A placement file cannot be read or written: a lockfile, a stored decision or a cost table.

    The file is missing, not JSON, incorrectly merged, of a later format, or violates the schema. ``file`` is its name, and
    ``position`` the path inside it, such as ``plan[1].at``; both are empty if unknown. Files of the cache are measured again,
    with a CacheWarning.

    Remedy: the message states the position and what is expected there. Write a lockfile again with ``xrt lock MODEL -o FILE``.
    """

    def __init__(self, message: str, *, file: str = "", position: str = "") -> None:
        super().__init__(message)
        self.file = file
        self.position = position


class LockError(PlacementFileError):
    """A lockfile does not apply here, or cannot be created.

    With ``strict=True``: it was created for another model, machine, option or engine version. Also: there is nothing to lock,
    because nothing was measured; or a plan of the lockfile does not run.

    Remedy: the message lists all differences. Name engines whose options may refer to files or code yourself. Create the file
    again with ``xrt lock MODEL -o FILE``. Without ``strict=True`` the placement is measured instead.
    """


class CalibrationError(XRTError, ValueError):
    """Calibration data or a calibration table cannot be used.

    There are no batches; an input or an inner value contains NaN or an infinity; the table belongs to another model, or cannot
    be read. Also: no quantized model keeps the error within the budget.

    Remedy: the message names the batch, the value or the file. Calibrate again with ``m.calibrate(batches)``.
    """


class BatchJobError(XRTError, ValueError):
    """A batch job cannot be started, continued or finished.

    The output directory belongs to another job or process, or the cluster cannot be reached or lost a part.

    Remedy: continue a job with the arguments and files of its first run, or write to another directory.
    """


class DeviceError(XRTError, ValueError):
    """The device is unknown or not present, no listed engine runs on it, or an array belongs to another device.

    The last case also applies to buffers and streams.

    Remedy: a device is ``cpu``, ``cuda`` or ``cuda:N``; ``xrt engines`` lists the devices of each engine. CUDA needs CuPy
    (``pip install 'xrt-engine[cuda]'``) and a driver (``nvidia-smi``). Copy an array of another device yourself; XRT does not.
    """


class OutOfDeviceMemory(DeviceError, MemoryError):
    """A device has less free memory than requested.

    The message states the amount and the purpose: the weights or a run of a region with its engine, the copy of a value, a
    buffer of a bound call, a recorded call, or a region in ``verify``, ``bisect`` or a measurement. The module can be called
    again: no region was moved and nothing is remembered.

    Remedy: use smaller inputs, release other arrays of the device, or move nodes to the CPU with ``devices={"ort": "cpu"}``
    and pins.
    """


class XRTWarning(UserWarning):
    """The base class of all warnings of XRT.

    Warnings use Python's ``warnings`` and point at the line of your program. Issued directly if the environment variable
    ``XRT_LOG`` has another value than ``info`` or ``debug``.
    """


class BudgetWarning(XRTWarning):
    """More ``threads`` were requested than this process has cores; XRT uses as many threads as cores.

    The cores are those that the process may run on, or the quota of its container if that is smaller.

    Remedy: omit ``threads``, or give the process more cores. ``xrt doctor`` shows them.
    """


class CacheWarning(XRTWarning):
    """The cache on disk could not be read or written; the call continues and compiles as needed.

    The directory is not writable, the disk is full, an entry is damaged, or ``XRT_CACHE``, ``XRT_CACHE_SIZE`` or
    ``XRT_CACHE_DIR`` has an invalid value. Damaged placement files (costs, decisions, engine states) are measured again and
    replaced. A directory that another user may write to is not used, because entries may contain native code. Issued once per
    cache.

    Remedy: the message names the file or directory. ``xrt cache verify`` checks all entries, ``xrt cache gc`` removes
    damaged ones, ``XRT_CACHE_DIR`` selects another directory, ``XRT_CACHE=off`` disables it. Restrict a directory to
    yourself with ``chown`` and ``chmod 700``; clear it if others could write to it.
    """


class CalibrationWarning(XRTWarning):
    """Ranges were calibrated on too little data: one batch, where the method needs the statistics of several.

    Remedy: calibrate on more batches, or with ``method="minmax"``.
    """


class FallbackWarning(XRTWarning):
    """Nodes run on another engine than the first choice; ``m.explain()`` shows the reasons.

    They run on ``toy``, which was not listed; or an engine refused them at compile, failed to run them, or returned results
    that ``check=`` found wrong. Also: a bundle is compiled again, because this machine has another version, processor or
    thread count, or lacks an engine.

    Remedy: list ``toy`` to accept it, or pass ``strict=True`` to make it an error.
    """


class NativeWarning(XRTWarning):
    """XRT's native kernels are not available; ``toy`` computes the same with NumPy, but slower.

    The library was not built, because no C++ compiler was found when XRT was installed, or it does not load here. Issued
    once per process, when ``toy`` first compiles.

    Remedy: install a compiler and then XRT again; the message has both commands. ``engine="toy{native=off}"`` selects NumPy
    without a warning.
    """


class PlacementWarning(XRTWarning):
    """A placement was not measured, or not with every engine of the list.

    An engine listed together with ``"auto"`` is missing or broken; a registered engine is broken; or nothing could be measured
    within the budget, and the order of the list decides. The message has the reason for each engine and the engine that is
    used. Also: a lockfile does not apply, and the placement is measured. With ``strict=True`` the last case is a LockError, and
    a missing engine an EngineUnavailable.

    Remedy: the message names the engine and how to repair it, or the budget. ``m.explain()`` shows how the plan was chosen;
    ``xrt tune MODEL --budget 60s`` searches longer.
    """


class SignatureWarning(XRTWarning):
    """The programs of a module exceed the ``max_bytes`` of the cache, or calls keep waiting for new sizes to compile.

    In the first case the module drops the least recently used one.

    Remedy: pass ``shapes=xrt.Buckets()``, engines that support symbolic dims, or ``cache=xrt.cache.CompileCache(max_bytes=...)``.
    """


# Every class above is public; a name that is missing here would be missing from the reference page too.
__all__ = [name for name, kind in sorted(vars().items()) if isinstance(kind, type) and issubclass(kind, XRTError | XRTWarning)]
__all__ += ["did_you_mean", "warn"]
