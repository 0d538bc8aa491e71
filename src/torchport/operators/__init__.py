"""What torchport knows about operators."""
