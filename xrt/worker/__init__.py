"""Workers: an engine compiles and runs in a process of its own; values pass through shared memory."""
