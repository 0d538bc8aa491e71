"""Where in a model some nodes are."""
