"""The `foremount` command. Subcommands are imported when they are run: `--help` and `status` start in some 100 ms and
never load pyarrow or pyfuse3.

Paths are declared as plain strings: `click.Path` stats what it is given, and a stat on a hung mount never returns.
"""

from __future__ import annotations

import importlib
import sys

import click

from vfs import __version__

_COMMANDS = {
    "mount": ("vfs.cli.mount:mount", "Mount what a configuration file describes."),
    "umount": ("vfs.cli.umount:umount", "End a mount, in order or by force."),
    "upgrade": ("vfs.cli.upgrade:upgrade", "Go on with the version of this command, without an unmount."),
    "status": ("vfs.cli.status:status", "Say how the mounts of this host do and what to do about trouble."),
    "top": ("vfs.cli.top:top", "Show what a mount is doing, and for whom, live."),
    "why": ("vfs.cli.why:why", "Say why a process or a job is slow, and what would change it."),
    "explain": ("vfs.cli.paths:explain", "Say which site, replica and version serve a path, and why."),
    "fetch": ("vfs.cli.paths:fetch", "Make files and trees local."),
    "evict": ("vfs.cli.paths:evict", "Drop the local copy of files and trees."),
    "verify": ("vfs.cli.paths:verify", "Read the cache against its digests and drop what is broken."),
    "snapshot": ("vfs.cli.snapshot:snapshot", "Take, list and drop snapshots that rules pin prefixes to."),
    "job": ("vfs.cli.job:job", "Samples of training jobs: start, stop, tell, status, timeline."),
    "index": ("vfs.cli.index:index", "Write the indices that schedules of tars need."),
    "checkpoints": ("vfs.cli.checkpoints:checkpoints", "List checkpoints: step, state, times; remove incomplete ones."),
    "controller": ("vfs.cli.foresight:controller", "Run a controller of predictions and copies."),
    "event": ("vfs.cli.foresight:event", "Tell the controller what a training job does, or will do."),
    "copies": ("vfs.cli.foresight:copies", "List copies made ahead, cancel them, switch mechanisms on and off."),
    "ledger": ("vfs.cli.foresight:ledger", "Say what predictions were worth, and what they cost."),
    "trace": ("vfs.cli.trace:trace", "Record what is opened and read on a live mount."),
    "replay": ("vfs.cli.replay:replay", "Try another policy or configuration on a recorded run."),
    "report": ("vfs.cli.report:report", "Collect what a bug report needs in one file, without secrets."),
    "doctor": ("vfs.cli.doctor:doctor", "Check the host, and a live mount against what frameworks need."),
    "node": ("vfs.cli.node:node", "Transform samples next to the data, from the schedules of training jobs."),
    "operator": ("vfs.cli.operator:operator", "Try, sign and list the operators that transform samples."),
    "config": ("vfs.cli.config:config", "Check a configuration file."),
    "policy": ("vfs.cli.policy:policy", "Check and ask the policy documents."),
}


class _LazyGroup(click.Group):
    """Knows its commands by name and one line of help, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:  # `foremount status | head`
            sys.exit(1)
        except Exception as exc:
            from vfs.cli import output
            from vfs.errors import ForemountError

            if not isinstance(exc, ForemountError):
                raise
            output.complain(exc, as_json=bool(ctx.meta.get(output.AS_JSON)))
            sys.exit(1)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="foremount")
def main() -> None:
    """A path on every training host that knows what training will read next.

    Exit status: 0 all is well, 1 trouble, 2 wrong usage. Commands that print facts take --json.
    """
