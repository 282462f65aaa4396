"""`python -m tests.kafka.dying SIGNAL MODULE ARGUMENTS`: a run that gets a signal when it has committed something.

Who watches a run from outside may come too late on a busy machine: the run is over by then.
"""

import os
import runpy
import signal
import sys
from typing import Any

from logkeep_engine.archive.catalog.writer import Committed, Writer


def _die_in_the_middle(number: signal.Signals) -> None:
    """This process gets the signal after its first commit of receipts."""
    commit = Writer.commit
    left = [number]

    def commit_and_die(writer: Writer, **facts: Any) -> Committed:
        done = commit(writer, **facts)
        if left and facts.get("receipts"):
            os.kill(os.getpid(), left.pop())
        return done

    setattr(Writer, "commit", commit_and_die)  # noqa: B010


if __name__ == "__main__":
    _, name, module, *arguments = sys.argv
    _die_in_the_middle(signal.Signals[name])
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
