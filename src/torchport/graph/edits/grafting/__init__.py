"""Put nodes that come from elsewhere into a model."""
