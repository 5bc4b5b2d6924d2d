"""Whether a cache directory may be used: only this user and root can have written its content.

Entries contain native code, so a user who can write one can run code as the user who loads it. The rule is sshd's: the directory,
its content, and the folders above it up to the home directory belong to this user or to root, and no other user may write to
them. A folder above may have the sticky bit, as ``/tmp`` has, or be open to a group that is this user's alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["make_private", "open_private", "why_not_private", "why_not_trusted"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KNOWS_OWNERS = hasattr(os, "geteuid")
"""False on Windows, where modes and owners say nothing."""


def make_private(folder: Path) -> None:
    """Make a folder that only this user may read, and those above it that are missing; raises OSError.

    A folder that exists is left as it is.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        if folder.parent.is_dir():  # a file system such as /proc, where nothing can be made
            raise
        make_private(folder.parent)
        make_private(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(0o700)  # an odd umask may have taken the user's own rights too


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user may read, as an ``opener`` of `open`."""
    return os.open(path, flags, 0o600)


def why_not_trusted(directory: Path) -> str | None:
    """Explain why the directory cannot be trusted, whether it exists yet or not; None where it can.

    Raises OSError where that cannot be found out.
    """
    if not _KNOWS_OWNERS:
        return None
    if directory.is_symlink() and (reason := _why_not_owned(directory, directory.lstat())):
        return reason
    real = Path(os.path.realpath(directory))
    with suppress(FileNotFoundError):  # made later, in the folders that are looked at below
        if reason := why_not_private(real):
            return reason
    for folder in _above(real):
        with suppress(FileNotFoundError):
            if reason := _why_not_safe_above(folder):
                return reason
    return None


def why_not_private(path: Path) -> str | None:
    """Return why another user may have made or may change a file or folder; None if none can. Raises OSError."""
    if not _KNOWS_OWNERS:
        return None
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{str(path)!r} is a link"
    if reason := _why_not_owned(path, status):
        return reason
    return _describe_access(path, status) if status.st_mode & _OTHERS else None


def _above(real: Path) -> Iterator[Path]:
    """Yield the folders above, the nearest first; beyond the home directory, itself included, sshd does not look either."""
    try:
        home = Path.home().resolve()
    except RuntimeError:  # this user has none
        home = Path("/")
    for folder in () if real == home else real.parents:
        yield folder
        if folder == home:
            return


def _why_not_safe_above(folder: Path) -> str | None:
    status = folder.stat()
    if reason := _why_not_owned(folder, status):
        return reason
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    if not status.st_mode & _OTHERS or is_sticky:
        return None
    if not status.st_mode & stat.S_IWOTH and _is_own_group(status.st_gid):
        return None
    return _describe_access(folder, status)


def _why_not_owned(path: Path, status: os.stat_result) -> str | None:
    if status.st_uid in (0, os.geteuid()):
        return None
    return f"{str(path)!r} belongs to another user, {_name_user(status.st_uid)}"


def _describe_access(path: Path, status: os.stat_result) -> str:
    return f"others may write to {str(path)!r}, whose mode is {stat.S_IMODE(status.st_mode):04o}"


def _name_user(number: int) -> str:
    import pwd  # not on Windows

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _is_own_group(number: int) -> bool:
    """Whether a group has no member but this user, as the groups that some systems make for each user.

    Group 0 is none of them: containers put users in it who are listed nowhere.
    """
    import grp  # not on Windows
    import pwd

    if number == 0:
        return False
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    others = [one for one in pwd.getpwall() if one.pw_gid == number and one.pw_uid != user.pw_uid]
    return user.pw_gid == number and not others and not set(group.gr_mem) - {user.pw_name}
