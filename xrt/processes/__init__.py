"""Child processes: started in one way, and ended with the process that started them.

A command or an entry point of XRT goes in, a running process comes out. A Python process imports from where this one does, and
never from the current directory. When this process ends, however it ends, the system kills the child and its process group.
"""

from xrt.processes.spawn import end, run_python, start, start_python
from xrt.processes.tree import kill, list_descendants

__all__ = ["end", "kill", "list_descendants", "run_python", "start", "start_python"]
