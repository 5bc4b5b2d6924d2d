"""Building blocks for engine authors: known issues, memory planning, decompositions, node queries, array operations."""
