"""Child processes: started in one way, spoken to in one way, and ended with the process that started them.

A command or an entry point of XRT goes in, a running process comes out. A Python process imports from where this one does, and
never from the current directory. When this process ends, however it ends, the system kills the child and its process group.
`client` and `server` are the two ends of a worker process, which answers messages; `run` is for a foreign program.
"""

from xrt.processes.spawn import end, run, start, start_python
from xrt.processes.tree import kill, list_descendants

__all__ = ["end", "kill", "list_descendants", "run", "start", "start_python"]
