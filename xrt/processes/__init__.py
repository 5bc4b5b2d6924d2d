"""Child processes: start, communicate, and end them with the process that started them.

A Python child has the same import path as this process, without the current directory. However this process ends, the system
kills its children and their process groups. A worker answers the messages of a `client.WorkerProcess` with `ipc.serve`; `run` is
for other programs.
"""

from xrt.processes.spawn import end, kill, list_descendants, name_signal, run, start, start_python

__all__ = ["end", "kill", "list_descendants", "name_signal", "run", "start", "start_python"]
