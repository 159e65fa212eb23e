"""Where the program starts and ends.

Owns the exit code and the last word on stderr. Refuses to know any command. Invariant: no
traceback reaches the terminal; what went wrong is one sentence there, the rest is in the log.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tuichat.cli.commands import HELP_NAMES, Tuichat

cli = Tuichat("tuichat", context_settings=HELP_NAMES)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        code = cli.main(list(args), prog_name="tuichat", standalone_mode=False)
        # A reader of stdout that went away shows only here if all of the output fit the buffer.
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        from tuichat.cli.failure import show_usage_error

        return show_usage_error(error)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        from tuichat.cli.failure import abandon_stdout

        return abandon_stdout()
    except Exception as error:
        from tuichat.cli.failure import show_failure

        return show_failure(error)
