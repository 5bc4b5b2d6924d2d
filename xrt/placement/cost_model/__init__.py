"""The cost model: what a plan will take, from what its regions, launches and boundaries were measured to take."""
