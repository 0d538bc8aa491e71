"""Make a dimension of an exported model dynamic, and let the whole graph follow."""
