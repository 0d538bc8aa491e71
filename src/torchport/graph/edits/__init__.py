"""Changes of a model, one kind a file. Each is a function on an `ir.Model` that changes it in place."""
