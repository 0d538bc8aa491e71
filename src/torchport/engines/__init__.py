"""Open models in engines and run them."""
