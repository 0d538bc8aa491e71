"""Python control flow on tensors, rewritten so that a capture keeps it.

`sites` says which lines a capture stumbled over, `source` finds their functions, `transform` turns `if`, `while` and
`for` into calls of `flow`, `swap` puts the new code in place for the time of a capture. `flow` decides at run time: a
plain value takes plain Python's way, a tensor under torch.export becomes `operators.choice` or `operators.loop`.
"""
