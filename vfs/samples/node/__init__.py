"""The node service: runs beside a site, reads schedules and raw bytes itself, and has samples ready before their step.

`queue.py` decides what to make next and what to give (pure), `conductor.py` carries it out, `service.py` is its HTTP side,
`load.py` looks at the host, `lake.py` reads the sites.
"""
