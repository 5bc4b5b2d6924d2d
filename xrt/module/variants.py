"""Variants of a bundle: what was compiled for several processors, or placed for several thread budgets, over one set of weights.

Each has a record of its own: engines, options, plans and compiled forms. The one for this machine is chosen when the bundle is
loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from xrt.cache.signature import describe_machine
from xrt.engines.contract import registry
from xrt.errors import BundleError, EngineUnavailable, UnknownEngine
from xrt.runtime import default_budget, find_granted_threads

if TYPE_CHECKING:
    from xrt.formats.bundle import BundleFile
    from xrt.formats.container import Buffer
    from xrt.formats.program_record import ProgramRecord

__all__ = ["SECTION", "Extension", "Variant", "choose_variant", "dump_variants", "extend_bundle", "read_variants"]

SECTION = "variants"


@dataclass(frozen=True, slots=True)
class Variant:
    """What a variant was saved for."""

    suffix: str
    """Behind the names of its record, Functions and plans."""
    machine: str
    """The processor, as a signature has it."""
    threads: int
    engines: tuple[str, ...]
    """Specs."""

    def __str__(self) -> str:
        return f"{_shorten(self.machine)}, {self.threads} thread{'s' * (self.threads != 1)}"


def _shorten(machine: str) -> str:
    """Return the processor's name; all that is known of it, where the system does not tell it."""
    return machine.rpartition("; ")[2] or machine


def dump_variants(variants: Sequence[Variant]) -> bytes:
    """Return the section of a bundle that lists its variants."""
    return json.dumps([asdict(one) for one in variants]).encode()


def read_variants(file: BundleFile) -> tuple[Variant, ...]:
    """Return the variants of a bundle; none where it does not list them. Raises BundleError where the list is damaged."""
    data = file.find_section(SECTION)
    if data is None:
        return ()
    try:
        return tuple(_parse(**one) for one in json.loads(bytes(data)))
    except (ValueError, TypeError, RecursionError) as error:
        raise BundleError(f"cannot load {os.fspath(file.path)!r}: its list of variants cannot be read: {error}") from error


def _parse(suffix: Any, machine: Any, threads: Any, engines: Any) -> Variant:
    if [type(one) for one in (suffix, machine, threads, engines)] != [str, str, int, list]:
        raise TypeError("an entry has other types")
    return Variant(suffix, machine, threads, tuple(map(str, engines)))


def choose_variant(file: BundleFile, threads: int | None) -> tuple[BundleFile, str]:
    """Return the file by the variant that serves here, and why none does: then it is the first, and is compiled again.

    It is one of this processor: that of the thread budget, else one whose engines say that it serves the budget, those of more
    threads first. ``threads`` is the budget that is asked for.
    """
    variants = read_variants(file)
    if len(variants) < 2:
        return file, ""
    here = describe_machine()
    fitting = [one for one in variants if one.machine == here]
    if not fitting:
        made = "; ".join(map(str, variants))
        return file, f"none of its {len(variants)} variants is for this processor, {_shorten(here)}: they are for {made}"
    wanted = next((n for n in (threads, find_granted_threads()) if n is not None), default_budget())
    ranked = sorted(fitting, key=lambda one: (one.threads != wanted, one.threads < wanted, abs(one.threads - wanted)))
    chosen = next((one for one in ranked if _serves(one, wanted)), ranked[0])
    return _without_others(file.select(chosen.suffix), [one for one in variants if one is not chosen]), ""


def _serves(variant: Variant, threads: int) -> bool:
    return variant.threads == threads or all(_serves_threads(spec, variant.threads, threads) for spec in variant.engines)


def _serves_threads(spec: str, saved: int, threads: int) -> bool:
    try:
        if registry.why_not_chosen(spec, "bundle"):
            return False
        return registry.create(spec).serves_threads(saved, threads)
    except (EngineUnavailable, UnknownEngine):
        return False


def _without_others(file: BundleFile, others: Sequence[Variant]) -> BundleFile:
    """Return the file, whose unused sections are those of the other variants alone."""
    mine = _list_sections(file.record)
    own = {f"manifest{one.suffix}" for one in others}
    file.unused = frozenset(own | {name for name in file.sections if name.startswith(("function", "plan", "compiled:"))} - mine)
    return file


def _list_sections(record: ProgramRecord) -> set[str]:
    """The sections that a record names."""
    programs = record.programs
    parts = [name for program in programs for name in (program.function, program.plan)]
    return {record.facts["model"], *parts, *(form.section for program in programs for form in program.compiled)} - {""}


# ---------------------------------------------------------------------- one more


@dataclass(frozen=True, slots=True)
class Extension:
    """A bundle to which a variant is added."""

    suffix: str
    """That of the new variant."""
    variants: tuple[Variant, ...]
    """Those that stay, and the new one."""
    copied: Mapping[str, Buffer]
    """Sections that stay."""


def extend_bundle(file: BundleFile, machine: str, threads: int, engines: Sequence[str]) -> Extension:
    """Return what of a bundle stays when a variant for that machine and budget is added: all but one for the same."""
    listed = read_variants(file)
    replaced = next((one.suffix for one in listed if (one.machine, one.threads) == (machine, threads)), None)
    taken = {one.suffix for one in listed}
    free = next(suffix for suffix in ("", *(f"@{n}" for n in range(1, len(taken) + 1))) if suffix not in taken)
    suffix = free if replaced is None else replaced
    new = Variant(suffix, machine, threads, tuple(engines))
    kept = [one for one in listed if one.suffix != suffix]
    copied = dict.fromkeys(name for one in kept for name in _list_kept(file.select(one.suffix)))
    return Extension(suffix, tuple(sorted((*kept, new), key=lambda one: one.suffix)), {n: file.read_compiled(n) for n in copied})


def _list_kept(file: BundleFile) -> Iterator[str]:
    """Yield the sections of a variant, and the weights of its models and plans."""
    record = file.record
    for section in (record.facts["model"], *(program.function for program in record.programs)):
        if section:
            file.model(section)
    for program in record.programs:
        file.read_plan(program.plan)
    named = (f"manifest{file.suffix}", *sorted(_list_sections(record)), *sorted(file.read_weights))
    yield from (name for name in named if name in file.sections)
