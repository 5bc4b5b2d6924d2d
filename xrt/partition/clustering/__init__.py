"""Clustering: the nodes of each engine are grouped so that the graph of groups has no cycle."""
