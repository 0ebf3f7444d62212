"""The table of commands, and how errors reach a person: ``error:`` and ``hint:`` on stderr, exit code 2 for bad input.

Exit codes: 0 an answer (a fit says no in its output), 1 no answer (nothing fits, nothing known supports one, a corrupt
file), 2 bad input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from gpuwise import __version__
from gpuwise.errors import GpuwiseError, InputError

COMMANDS: tuple[tuple[str, str], ...] = (
    ("plan", "gpuwise.cli.plan:plan"),
    ("fit", "gpuwise.cli.fit:fit"),
    ("models", "gpuwise.cli.models:models"),
    ("gpus", "gpuwise.cli.gpus:gpus"),
    ("validate", "gpuwise.cli.validate:validate"),
)
"""Name and where it lives; a command's module is imported when it runs (or is listed by ``--help``)."""


def build() -> App:
    """The application."""
    app = App(
        name="gpuwise",
        help="For any AI workload and any accelerator: does it fit, how fast is it, what does it cost, what should change.",
        version=__version__,
        help_format="plaintext",
        result_action="return_value",
    )
    for name, target in COMMANDS:
        app.command(target, name=name)
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    # one process, two threads of our own: BLAS threads would only cost start-up time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        result = build()(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except GpuwiseError as error:
        return _refuse(error.message, error.hint, 2 if isinstance(error, InputError) else 1)
    except CycloptsError as error:
        return _refuse(*_parsing(error), 2)
    except BrokenPipeError:
        # the reader left (a pager, head): nothing more to say, and nothing to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def _parsing(error: CycloptsError) -> tuple[str, str]:
    """A parser error in our words: first line lower case, and where to look."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = " ".join(lines) or type(error).__name__
    chain = [name for name in getattr(error, "command_chain", None) or () if name]
    return text[:1].lower() + text[1:].rstrip("."), f"see `gpuwise {' '.join([*chain, '--help'])}`"


def _refuse(message: str, hint: str | None, code: int) -> int:
    lines = [f"error: {message}"] + ([f"hint: {hint}"] if hint else [])
    sys.stderr.write("\n".join(lines) + "\n")
    return code
