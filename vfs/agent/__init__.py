"""The agent: everything slow. Asks the sites, fills the cache, serves the command line."""
