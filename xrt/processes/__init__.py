"""Child processes: start, communicate, and end them with the process that started them.

A Python child has the same import path as this process, without the current directory. However this process ends, the system
kills its children and their process groups. `client` and `server` are the two ends of a worker that answers messages; `run` is
for other programs.
"""

from xrt.processes.spawn import end, kill, list_descendants, run, start, start_python

__all__ = ["end", "kill", "list_descendants", "run", "start", "start_python"]
