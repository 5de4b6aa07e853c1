"""Training and running networks in fewer bits: number formats, mixed precision, and smaller models."""
