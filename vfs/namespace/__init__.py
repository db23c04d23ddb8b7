"""Names: which site a path belongs to, what the kernel knows, what the origins said."""
