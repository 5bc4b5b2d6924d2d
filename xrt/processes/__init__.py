"""Child processes: start, communicate, and end them with the process that started them.

However this process ends, the system kills its children and their process groups. `run` runs any program. A
`client.WorkerProcess` is a Python process that answers requests with `ipc.serve`.
"""

from xrt.processes.spawn import end, kill, list_descendants, name_signal, run, start, start_python

__all__ = ["end", "kill", "list_descendants", "name_signal", "run", "start", "start_python"]
