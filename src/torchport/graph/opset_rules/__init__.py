"""How each operator is carried from one opset to its neighbor, one family a file.

reading    what a rule reads off a node, or the reason it cannot
schemas    what the installed onnx says of operators, and whether a node fits
builder    the nodes put in the place of one, typed and with its origin
review     which changes of wording were read and found harmless
expand     an operator taken apart into the body its schema gives
table      all rules, by operator and border
steps      a whole model, one border after the other
the rest   the rules
"""
