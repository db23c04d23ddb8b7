"""What admins touch: the API on a Unix socket, status files, metrics."""
