"""What `lint` looks for, one kind of fault a file."""
