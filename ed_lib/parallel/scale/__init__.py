"""To ten thousand devices: what a step costs on a mesh of them, by a model, and what published runs took."""
