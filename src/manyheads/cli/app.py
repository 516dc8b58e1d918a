"""The commands, and what becomes of a mistake in any of them."""

import os
import sys

from cyclopts import App, CycloptsError, Parameter

from manyheads import __version__
from manyheads.cli.failure import FAILED, INTERRUPTED, WRONG_USE, complain, warnings_in_a_line
from manyheads.errors import ManyheadsError

# By the module that holds it, so that a command loads no other's.
COMMANDS = {
    "demo": "Train on dates of many languages, translate, and see which head reads what.",
    "train": "Train a Transformer on a task, with a progress bar.",
    "generate": "Write the answer of a trained model, or of SmolLM2, to each text.",
    "look": "Print what each head of a model does, and draw the clearest; or draw a mask.",
    "explain": "Tell which backend does an attention call, why, and at what memory.",
    "cache": "Tell what a model's keys and values take, and would take otherwise.",
    "compare": "Tell how far an approximation is off, and from which length on it is faster.",
    "doctor": "Tell what is wrong with any model's attention, where, and what cures it.",
    "info": "Print the facts that a bug report needs.",
}

app = App(
    name="manyheads",
    help="Attention for PyTorch that you can trust, see and afford.",
    help_epilogue="Add --debug to any command to see the whole traceback of a mistake.",
    version=__version__,
    default_parameter=Parameter(negative=()),
    # Both are `run`'s to handle, in one place.
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
for name, summary in COMMANDS.items():
    app.command(f"manyheads.cli.{name}:{name}", name=name, help=summary)


def run(arguments: list[str]) -> int:
    """Run one command and turn whatever happens into an exit code.

    Args:
        arguments: What stands after ``manyheads``. ``--debug`` anywhere before ``--`` lets
            mistakes show their traceback.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if debug:
        arguments = [each for each in own if each != "--debug"] + arguments[len(own) :]
    try:
        with warnings_in_a_line():
            code = app(arguments)
        sys.stdout.flush()  # here, where a closed pipe can still be answered
    except CycloptsError as error:
        command = " ".join(["manyheads", *(error.command_chain or ())])
        complain(f"{_usage(error)} Run: {command} --help")
        return WRONG_USE
    except KeyboardInterrupt as stop:
        complain(str(stop) or "stopped.")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does; Python must not flush into it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ManyheadsError as error:
        return _report(error, str(error), debug)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _report(error, f"{error.strerror or error}{where}.", debug)
    return code if isinstance(code, int) else 0


def _report(error: Exception, message: str, debug: bool) -> int:
    if debug:
        raise error
    complain(message)
    return WRONG_USE


def _usage(error: CycloptsError) -> str:
    error.verbose = False
    text = str(error).strip()
    return text if text.endswith((".", "?", "!")) else f"{text}."
