"""Which nodes, weights and inputs of two models are the same."""
