"""What is asked and answered, and where its samples come from."""
