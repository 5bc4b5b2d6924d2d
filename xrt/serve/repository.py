"""The served models by name and version, which are modules, bundles or ONNX files; load and unload them while serving."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from xrt.engines.contract.registry import why_forbidden
from xrt.errors import OptionError, XRTError
from xrt.formats.bundle import BundleFile, is_bundle
from xrt.module import XRTModule, load
from xrt.module.tuning import read_serving
from xrt.serve.metrics import Metrics
from xrt.serve.protocol import RequestRefusal, Status
from xrt.serve.served_model import STARTING, ServedModel, ServingOptions

_log = logging.getLogger(__name__)

_VALID_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


def open_module(path: str | os.PathLike[str], options: Mapping[str, Any]) -> XRTModule:
    """Open a bundle or an ONNX file; ``options`` are keywords of `xrt.load` or XRTModule.

    The option ``engine`` selects the engines of an ONNX file. A bundle names its engines, but an engine with options that may
    name files or code is only accepted if ``engine`` lists it, too. The option ``threads`` defaults to the thread budget that a
    bundle was tuned for. Raises BundleError or ModelError if the file is missing or damaged.
    """
    if os.fspath(path).endswith(".onnx") and not is_bundle(path):
        return XRTModule(path, **options)
    engines = options.get("engine", ())
    engines = [engines] if isinstance(engines, str) else engines
    trusted = [engine for engine in engines if why_forbidden(str(engine), "bundle")]
    serving = read_serving(BundleFile(path)) if is_bundle(path) else None
    defaults = {} if serving is None else {"threads": serving.threads}
    return load(path, **{**defaults, **options, "engine": trusted})


@dataclass(slots=True)
class _Entry:
    """One version of a model that the operator configured, whether it is served or not."""

    name: str
    version: str
    source: Any
    """A module, or the path of a bundle or an ONNX file."""
    served: ServedModel | None = None
    """None if the model could not be opened or was unloaded."""
    reason: str = ""
    """Why `served` is None."""

    @property
    def why_not_ready(self) -> str:
        """Why the model does not accept requests; empty if it is in service."""
        return self.reason if self.served is None else self.served.why_not_ready

    def describe(self) -> dict[str, str]:
        """Describe the version as an entry of Triton's repository index."""
        reason = self.why_not_ready
        state = "LOADING" if reason == STARTING else "UNAVAILABLE" if reason else "READY"
        return {"name": self.name, "version": self.version, "state": state, "reason": reason}


class Repository:
    """The served models, each with one or more versions; the highest version is the default.

    ``models`` is a module, a path, or a list of paths, and the models are named after their files. Or it maps names to modules,
    to paths, or to mappings from versions to modules or paths. Paths are opened by `open_module` with ``module_options``. If a
    model cannot be opened, the error is logged and the other models are served. Raises OptionError for an invalid name, and the
    error of the first model if no model can be opened.
    """

    def __init__(self, models: Any, options: ServingOptions, metrics: Metrics, module_options: Mapping[str, Any]) -> None:
        self._options, self._metrics, self._module_options = options, metrics, module_options
        self._entries: dict[str, dict[str, _Entry]] = {}
        """The versions of each model, by name and version."""
        self._preparing: asyncio.Task[None] | None = None
        # Loads and unloads run one at a time. Their tasks are stored, since the event loop has only weak references to them.
        self._change_lock = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        for entry in _iterate_models(models):
            # Names and versions are parts of URL paths and labels of metrics.
            for kind, label in (("name", entry.name), ("version", entry.version)):
                if not _VALID_NAME.fullmatch(label):
                    raise OptionError(f"a model's {kind} has letters, digits, '.', '-' and '_'; got {label!r}: give name=path")
            if entry.version in self._entries.setdefault(entry.name, {}):
                raise OptionError(f"model {entry.name!r} is given twice; give each its own name, or a version: name:2=path")
            self._entries[entry.name][entry.version] = entry
        if not self._entries:
            raise OptionError("there is no model to serve; give at least one")
        errors: list[Exception] = []
        for entry in self._list_entries():
            try:
                entry.served = self._open(entry)
                entry.served.show_metrics()
            except (XRTError, OSError) as error:
                errors.append(error)
                entry.reason = str(error)
        if not list(self):  # no model could be opened
            raise errors[0]
        for entry in self._list_entries():
            if entry.reason:
                _log.error("model %s, version %s, is not served: %s", entry.name, entry.version, entry.reason)

    def _open(self, entry: _Entry) -> ServedModel:
        """Open the module of an entry, without testing it. Raises OptionError and the errors of `open_module`."""
        module, reopen = entry.source, None
        if isinstance(entry.source, str | os.PathLike):
            reopen = partial(open_module, entry.source, self._module_options)
            module = reopen()
        if not isinstance(module, XRTModule):
            raise OptionError(f"a model is an XRTModule or the path of a bundle or ONNX file; got {type(module).__name__}")
        if type(module) is not XRTModule:
            raise OptionError(f"a {type(module).__name__} has PyTorch tensors as inputs; save it and serve its bundle")
        try:
            return ServedModel(entry.name, entry.version, module, self._options, self._metrics, open_again=reopen)
        except XRTError:
            if reopen is not None:  # otherwise the module belongs to the caller
                module.close()
            raise

    def start(self) -> asyncio.Task[None]:
        """Start to prepare the models, once. Each model is in service, or has a `why_not_ready`, when the returned task ends."""
        if self._preparing is None:
            self._preparing = asyncio.ensure_future(self._prepare_all())
        return self._preparing

    async def _prepare_all(self) -> None:
        for model in self:
            await model.prepare()

    async def close(self) -> None:
        """Finish accepted requests, take all models out of service, and close the modules that were opened here."""
        # A model must not be closed during its self-test, and loads in progress add models to close.
        if self._preparing is not None:
            await self._preparing
        await self.wait_for_changes()
        await asyncio.gather(*(model.close() for model in self))

    def _list_entries(self, name: str | None = None) -> list[_Entry]:
        names = self._entries if name is None else [name]
        return [entry for name in names for entry in self._entries[name].values()]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter([entry.served for entry in self._list_entries() if entry.served is not None])

    def find(self, name: str, version: str | None) -> ServedModel:
        """Find a served model; ``version`` defaults to the highest served one. Raises RequestRefusal if it is not served."""
        entry = self.find_entry(name, version)
        if entry.served is None:
            raise RequestRefusal(f"model {name!r} is not served: {entry.reason}", Status.NOT_FOUND)
        return entry.served

    def select(self, name: str, version: str) -> list[ServedModel]:
        """List the served models of a name and version; an empty string selects all. Raises RequestRefusal for an unknown one."""
        if not name:
            return list(self)
        versions = [version] if version else self.list_versions(self.find(name, None).name)
        return [self.find(name, version) for version in versions]

    def find_entry(self, name: str, version: str | None) -> _Entry:
        """Find a version of a model, whether it is served or not; raises RequestRefusal if it is not configured."""
        versions = self._find_versions(name)
        if not version:
            # If no version is served, return the first one, whose reason is reported to the client.
            served = self.list_versions(name)
            version = served[-1] if served else next(iter(versions))
        if version not in versions:
            version_list = ", ".join(versions)
            raise RequestRefusal(f"model {name!r} has no version {version[:200]!r}; it has: {version_list}", Status.NOT_FOUND)
        return versions[version]

    def _find_versions(self, name: str) -> dict[str, _Entry]:
        if name not in self._entries:
            raise RequestRefusal(f"there is no model {name[:200]!r}; available: {', '.join(self._entries)}", Status.NOT_FOUND)
        return self._entries[name]

    def list_versions(self, name: str) -> list[str]:
        """List the served versions of a model in ascending order: first versions that are not numbers, then numbers by value."""
        versions = [entry.version for entry in self._list_entries(name) if entry.served is not None]
        numbers = sorted((version for version in versions if version.isdecimal()), key=lambda version: (int(version), version))
        return sorted(version for version in versions if not version.isdecimal()) + numbers

    def list_names(self) -> dict[str, list[str]]:
        return {name: versions for name in self._entries if (versions := self.list_versions(name))}

    def list_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Describe all configured versions, or with ``ready`` those in service, as Triton's repository index."""
        return [entry.describe() for entry in self._list_entries() if not ready or not entry.why_not_ready]

    async def load(self, name: str) -> None:
        """Load the files of all versions of a model and serve them; raises RequestRefusal if that fails.

        The old files of a version are served until the new files have passed the self-test; if they fail, the old files stay in
        service. A model that was passed as a module has no files: it is only served again if it was unloaded.
        """
        self._check_control_allowed(name)
        await self._run_to_end(self._load, name)

    async def unload(self, name: str) -> None:
        """Take all versions of a model out of service, and close them after their requests. Raises RequestRefusal."""
        self._check_control_allowed(name)
        await self._run_to_end(self._unload, name)

    async def reload(self) -> None:
        """Load the files of all models again. A model whose files fail to load stays in service, and the reason is logged."""
        await self._run_to_end(self._reload)

    def _check_control_allowed(self, name: str) -> None:
        self._find_versions(name)
        if not self._options.model_control:
            raise RequestRefusal(
                "model_control is off, so requests cannot load or unload models; send SIGHUP, or restart the server"
            )

    async def _run_to_end(self, change: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run ``change(*args)``, which loads or unloads models, after earlier changes, and even if the client disconnects.

        A cancelled load would leave an open module that is not served, and a cancelled unload a module that is never closed.
        """

        async def run() -> None:
            await self.start()
            async with self._change_lock:
                await change(*args)

        task = asyncio.ensure_future(run())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def wait_for_changes(self) -> None:
        """Wait for loads and unloads in progress."""
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def _load(self, name: str) -> None:
        for entry in self._list_entries(name):
            old = entry.served
            if old is not None and isinstance(entry.source, XRTModule):
                continue  # the model is in service, and has no files that could have changed
            entry.served = await self._prepare(entry)
            entry.served.show_metrics()  # until now, the gauges had to report the old model
            if old is not None:
                # Sessions of the old model are lost; their clients get status 410 with this reason.
                entry.served.sessions.forget_sessions_of(old.sessions, "the model was loaded again")
                await old.close()  # the old queue only shrinks, since new requests go to the new model

    async def _prepare(self, entry: _Entry) -> ServedModel:
        """Open and test the model of an entry; raises RequestRefusal if it cannot be served."""
        failure = f"model {entry.name!r}, version {entry.version!r}, cannot be loaded: "
        try:
            # In a thread, because reading a large file must not block the event loop.
            model = await asyncio.to_thread(self._open, entry)
        except (XRTError, OSError) as error:
            raise RequestRefusal(f"{failure}{error}") from error
        try:
            await model.prepare()
            if reason := model.why_not_ready:
                raise RequestRefusal(f"{failure}{reason}")
        except BaseException:
            await model.close()
            raise
        return model

    async def _unload(self, name: str) -> None:
        for entry in self._list_entries(name):
            # Take it out of service first, so that no request arrives while the queue drains.
            old, entry.served = entry.served, None
            if old is not None:
                entry.reason = "it was unloaded"
                await old.close()

    async def _reload(self) -> None:
        for name in self._entries:
            try:
                await self._load(name)
                _log.info("model %s was loaded again", name)
            except RequestRefusal as refusal:
                _log.error("%s", refusal)
            except Exception:  # noqa: BLE001  # the remaining models are still reloaded
                _log.exception("model %s cannot be loaded again", name)


def _iterate_models(models: Any) -> Iterator[_Entry]:
    """Yield an entry for each model in the argument ``models`` of `Repository`. The default version is "1"."""
    if not isinstance(models, Mapping):
        sources = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
        for source in sources:
            yield _Entry(Path(source).stem if isinstance(source, str | os.PathLike) else "model", "1", source)
        return
    for name, value in models.items():
        versions = value if isinstance(value, Mapping) else {"1": value}
        for version, source in versions.items():
            yield _Entry(str(name), str(version), source)
