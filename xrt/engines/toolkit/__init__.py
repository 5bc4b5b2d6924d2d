"""Building blocks for engine authors: support of nodes, known issues, rewrites, memory planning, shared memory, BLAS limits."""
