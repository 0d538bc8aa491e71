"""Two models side by side, layer by layer: what they were fed, how far they are apart, and where that began."""
