"""``xrt cache``: what compiles are kept on disk, whether they are sound, and why one is not found."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt.cache import Store
from xrt.cache.disk import StoredFailure, find_cache_directory, open_disk_tier
from xrt.cache.disk.config import parse_size
from xrt.cache.disk.plan_store import PlanStore
from xrt.cache.disk.report import CacheListing, Miss, explain_misses, list_entries
from xrt.cache.disk.store import CacheEntry
from xrt.cache.disk.tier import CheckedFileStore
from xrt.cache.disk.weight_hashes import WeightHashStore
from xrt.cli.options import load_with_sizes, module_keywords, module_options
from xrt.cli.screen import EDGES, GAP, human_bytes, out, show_table
from xrt.engines import GraphCompiler, create
from xrt.errors import CacheError, OptionError
from xrt.module import XRTModule

if TYPE_CHECKING:
    from xrt.partition import Launch

__all__ = ["command"]

_SHOWN = 60


@click.group("cache")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory [default: XRT_CACHE_DIR, or the user's cache]",
)
@click.pass_context
def command(context: click.Context, directory: Path | None) -> None:
    """List, verify and remove the compiled regions on disk."""
    context.obj = Store(directory or find_cache_directory())


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.pass_obj
def list_command(store: Store, as_json: bool) -> None:
    """List the entries, the most recently used first."""
    entries = list_entries(store)
    if as_json:
        out.print_json(json.dumps({"directory": str(store.directory), "entries": [asdict(entry) for entry in entries]}))
        return
    rows = [_row(entry) for entry in entries]
    if out.is_terminal:  # one line for each: what is wrong with it, or else its inputs, as far as there is room
        brief = [
            (key[:8], engine.partition(" ")[2] or engine, size, used[5:], note or inputs)
            for key, engine, size, used, inputs, note in rows
        ]
        widths = [max(map(len, cells)) for cells in zip(*(row[:4] for row in brief), strict=True)]
        room = max(out.width - sum(widths) - 4 * GAP - EDGES, 12)
        cut = [(*row[:4], _cut(row[4], room)) for row in brief]
        show_table(("entry", "engine", "size", "last used", "inputs"), cut, numbers=("size",))
    else:
        show_table(("entry", "engine", "size", "last used", "inputs", "note"), rows, numbers=("size",))
    total = sum(entry.size for entry in entries)
    out.print(f"{len(entries)} entries, {human_bytes(total)}, in {store.directory}", markup=False)
    _tell_unused(store)


def _tell_unused(store: Store) -> bool:
    """Print why the directory is not used, where it is not; tell whether it was printed."""
    reason = store.why_not_trusted()
    if reason is not None:
        out.print(f"it is not used: {reason}", markup=False, soft_wrap=True)
    return reason is not None


def _row(entry: CacheListing) -> tuple[str, ...]:
    used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
    note = entry.damage or (f"fails: {entry.failure}" if entry.failure else "")
    return entry.key[:12], entry.engine, human_bytes(entry.size), used, _cut(entry.entry, _SHOWN), _cut(note, _SHOWN)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@command.command("verify")
@click.pass_obj
def verify(store: Store) -> int:
    """Verify the checksums and the owner of every entry; exit code 1 when one cannot be used (`xrt cache gc` removes it)."""
    found = store.find_damaged()
    for reason in found.values():
        out.print(reason, markup=False)
    out.print(f"{len(store.items())} entries, {len(found)} of them damaged, in {store.directory}", markup=False)
    return int(_tell_unused(store) or bool(found))


@command.command("gc")
@click.option("--size", help="Remove the least recently used beyond this size, such as 2GB [default: XRT_CACHE_SIZE, or 5GB]")
@click.option("--failures", is_flag=True, help="Forget the compiles that are stored as failed")
@click.pass_obj
def gc(store: Store, size: str | None, failures: bool) -> None:
    """Remove what is damaged, left behind, out of date, or too much."""
    limit = _limit(store, size)
    damaged = store.find_damaged()
    forgotten = [item for item in store.items() if failures and item not in damaged and _is_failure(item.path)]
    for item in (*damaged, *forgotten):
        item.path.unlink(missing_ok=True)
    evicted, left = store.shrink(limit), store.sweep()
    stale, old = WeightHashStore(store).sweep() + CheckedFileStore(store).sweep(), PlanStore(store).sweep()
    said = (
        f"removed {len(damaged)} damaged entries, {len(forgotten)} remembered failures, {len(evicted)} entries over the limit of "
        f"{human_bytes(limit)}, {left} unfinished writes, the hashes of {stale} changed files, and {old} plans of these"
    )
    out.print(said, markup=False)


def _limit(store: Store, size: str | None) -> int:
    if size is None:
        tier = open_disk_tier(directory=store.directory)
        return tier.limit if tier else 0
    limit = parse_size(size)
    if limit is None:
        raise OptionError(f"--size takes a size such as 500MB or 2GB; got {size!r}")
    return limit


def _is_failure(path: Path) -> bool:
    try:
        return isinstance(CacheEntry.read(path).failure, StoredFailure)
    except (CacheError, OSError):
        return False


@command.command("clear")
@click.pass_obj
def clear(store: Store) -> None:
    """Remove everything."""
    count, total = len(store.items()), sum(item.size for item in store.items())
    store.clear()
    out.print(f"removed {count} entries, {human_bytes(total)}, from {store.directory}", markup=False)


@command.command("explain-miss")
@click.argument("model")
@module_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.pass_obj
def why_miss(store: Store, /, model: str, as_json: bool, **given: Any) -> int:
    """Say which ingredient keeps MODEL's regions from being found, against the nearest entry; exit code 1 when one is missing.

    What an engine cannot save is never there, and never missing.
    """
    function = load_with_sizes(model, {**given, "lock": None})
    with XRTModule(function, **module_keywords(given)) as module:
        signatures = module.signatures()
        unsaved = {launch.name: why for launch in module.plan.launches if (why := _why_unsaved(launch))}
    missed = explain_misses(store, [one for name, one in signatures.items() if name not in unsaved])
    if as_json:
        facts = {name: {"saves": name not in unsaved, **_as_data(one, missed)} for name, one in signatures.items()}
        out.print_json(json.dumps(facts))
        return int(bool(missed))
    by_key = {miss.signature.key: miss for miss in missed}
    for name, signature in signatures.items():
        if name in unsaved:
            lines = [f"{name}: {unsaved[name]}, so it is compiled in each process"]
        else:
            found = "not in the cache" if signature.key in by_key else "in the cache"
            lines = [f"{name}: {found}", *_describe_miss(by_key.get(signature.key))]
        out.print("\n".join(lines), markup=False)
    return int(bool(missed))


def _why_unsaved(launch: Launch) -> str:
    """Return why no executable of a launch is kept; empty where one is."""
    engine = create(launch.engine)
    if type(engine).save is GraphCompiler.save:
        return f"engine {launch.engine!r} cannot save an executable"
    small = f"engine {launch.engine!r} compiles so small a region in less time than it takes to load one"
    return "" if engine.is_worth_saving(launch.function) else small


def _describe_miss(miss: Miss | None) -> list[str]:
    if miss is None:
        return []
    if miss.nearest is None:
        return ["  the cache is empty"]
    lines = [f"  the nearest entry, {miss.nearest.key[:12]}, differs in:"]
    return lines + [
        f"    {name}: {_cut(mine, _SHOWN)}; the entry has {_cut(theirs, _SHOWN)}" for name, mine, theirs in miss.differences
    ]


def _as_data(signature: Any, missed: list[Miss]) -> dict[str, Any]:
    found = next((miss for miss in missed if miss.signature.key == signature.key), None)
    differences = [dict(zip(("ingredient", "asked", "entry"), d, strict=True)) for d in found.differences] if found else []
    return {"key": signature.key, "hit": found is None, "differs": differences}
