"""Building blocks for engine authors: support of nodes, compilation of nodes, known issues, memory planning, array operations."""
