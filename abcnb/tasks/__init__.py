"""Tasks: what is asked and answered, and where the samples come from."""
