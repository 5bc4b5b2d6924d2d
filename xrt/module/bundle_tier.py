"""The compiled forms of a bundle, as a tier in front of the cache on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xrt.cache import CompileRequest, DiskStatistics, DiskTier, Signature, Tier
from xrt.cache.disk.weight_hashes import identify_file
from xrt.errors import BundleError, CacheWarning, warn
from xrt.formats.bundle import BundleFile, make_working_directory
from xrt.graph import Function
from xrt.graph.deferred_function import DeferredFunction

if TYPE_CHECKING:
    from pathlib import Path

    from xrt.cache.disk import WeightHashStore
    from xrt.engines import Executable
    from xrt.partition import Plan

__all__ = ["BundleTier"]


@dataclass(eq=False)
class BundleTier:
    """Gives the compiled forms of a bundle; asks the disk tier behind it for everything else."""

    file: BundleFile
    behind: Tier | None
    strict: bool
    why_none: str = ""
    """Why no variant of the bundle is for this machine."""

    def __post_init__(self) -> None:
        self._sections: dict[tuple[tuple[str, str], ...], str] = {}
        self._watched: list[Function] = []
        self._loaded = 0

    @property
    def weights(self) -> WeightHashStore | None:
        return self.behind.weights if self.behind else None

    @property
    def statistics(self) -> DiskStatistics:
        """The tier's behind it, with what came from the bundle among the hits."""
        behind = self.behind.statistics if self.behind else DiskStatistics()
        return replace(behind, hits=behind.hits + self._loaded)

    def recall_check(self) -> None:
        """Do not read through a file again that this host has checked, and that has not changed since."""
        if isinstance(self.behind, DiskTier) and self.file.stamp is not None:
            if self.behind.checked.knows(self.file.path.absolute(), self.file.suffix, self.file.stamp):
                self.file.trust()

    def keep_check(self) -> None:
        """Remember that all of the file that is used was read, and is right."""
        if isinstance(self.behind, DiskTier):
            try:
                self.behind.checked.keep(self.file.path.absolute(), self.file.suffix, self.file.stamp)
            except OSError as error:
                self.behind.trouble(str(error))

    def watch(self, plan: Plan) -> None:
        """Let the hashes of a plan's weights be remembered: they lie in the bundle, which hardly ever changes."""
        if self.weights is None:
            return
        read = [launch for launch in plan.launches if not isinstance(launch.function, DeferredFunction)]
        held = {f"{x.name}:{n}": c for x in read for n, c in x.function.constants.items()}
        function = Function((), (), constants=held)
        self._watched.append(function)
        self.weights.recall(function, self.file.path.absolute(), identify_file(self.file.path))

    def keep_weights(self) -> None:
        """Write down the hashes of the bundle's weights, for the next process that loads it."""
        if self.behind is not None:
            self.behind.keep_weights()

    def offer(self, ingredients: tuple[tuple[str, str], ...], section: str) -> None:
        """Serve a signature of these ingredients from that section."""
        self._sections[_portable(ingredients)] = section

    def find_learning_directory(self, engine: str) -> Path | None:
        """Return where the tier behind keeps what an engine learns."""
        return self.behind.find_learning_directory(engine) if self.behind is not None else None

    def get_or_compile(
        self, signature: Signature, recipe: CompileRequest, make: Callable[[], Executable], *, force: bool = False
    ) -> Executable:
        """Return the signature's executable, prepared: from the bundle, from the tier behind it, or made."""
        self.keep_weights()
        section = self._sections.get(_portable(signature.ingredients))
        if section is not None and not force:
            try:
                return self._from_bundle(section, recipe)
            except Exception as error:
                if self.strict:
                    raise BundleError(f"{os.fspath(self.file.path)!r}: a compiled form cannot be loaded: {error}") from error
                warn(f"{os.fspath(self.file.path)!r}: a region is compiled again, since {error}", CacheWarning)
        if self.behind is None:
            return make()
        return self.behind.get_or_compile(signature, recipe, make, force=force)

    def _from_bundle(self, section: str, recipe: CompileRequest) -> Executable:
        with make_working_directory() as folder:
            context = replace(recipe.context, workdir=folder)
            executable = recipe.engine.load(self.file.read_compiled(section), recipe.function, context)
        executable.prepare()
        self._loaded += 1
        return executable


def _portable(ingredients: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the ingredients that mean the same in another installation."""
    return tuple((name, value) for name, value in ingredients if name != "code")
