"""Lookup, listing, opening and reading over the namespace. Knows neither pyfuse3 nor errnos: runs without a kernel."""
