"""`python -m vfs.cli`, where the `foremount` script is not on PATH."""

from vfs.cli import main

main(prog_name="foremount")
