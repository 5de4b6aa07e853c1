"""Processes that talk to each other: how they start, their collectives, and what a message costs."""
