"""Coordinates of tokens, lines over them, and how lines are found: no model, no task."""
