"""From an exception to one sentence on stderr.

Owns the wording of the last line. Refuses to know which command failed. Invariant: what is written
to the terminal passed ``sanitize``; what is not a sentence for people (a traceback) goes to the log
and nowhere else.
"""

from __future__ import annotations

import io
import os
import sys

import click

from tuichat.sanitize import sanitize, sanitize_line


class Refused(click.ClickException):
    """Wrong usage that one sentence explains better than the synopsis. Exit code 2."""

    exit_code = 2


def complain(message: str) -> None:
    """One line on stderr; a stderr that is gone is nobody's to complain to."""
    try:
        sys.stderr.write(f"tuichat: {sanitize_line(message)}\n")
        sys.stderr.flush()
    except OSError:
        pass


def show_usage_error(error: click.ClickException) -> int:
    """Click's own account of a usage error, or one line for ``Refused``; returns its exit code."""
    if isinstance(error, click.UsageError):
        shown = io.StringIO()
        error.show(file=shown)
        sys.stderr.write(sanitize(shown.getvalue()))
    else:
        complain(error.format_message())
    return error.exit_code


def show_failure(error: Exception) -> int:
    """One sentence on stderr, the traceback of anything unforeseen in the log; returns 1."""
    import logging

    from tuichat.api import TuichatError
    from tuichat.cli.log import log_path, start_logging

    start_logging()
    logger = logging.getLogger(__name__)
    if isinstance(error, TuichatError):
        logger.info("%s: %s", type(error).__name__, error, exc_info=error)
        complain(str(error))
    else:
        logger.error("unforeseen", exc_info=error)
        complain(
            f"something unforeseen went wrong ({type(error).__name__}: {error}); "
            f"the details are in {log_path()}"
        )
    return 1


def abandon_stdout() -> int:
    """Whoever read stdout is gone (``| head``): say nothing and return 1."""
    # Python flushes stdout once more at exit and would complain about the same pipe again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
