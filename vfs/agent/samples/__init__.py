"""What is below `.jobs`, for the worker that shows it."""
