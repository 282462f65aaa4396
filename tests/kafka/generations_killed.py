"""`python -m tests.kafka.generations_killed SPEC FOLDER`: a run that makes a generation, killed after each step of it.

`FOLDER`/archive is the archive before the run. A step is an object that was created, replaced or deleted. For each step
there is a copy, `FOLDER`/killed-1 and so on, in which a run was killed after it. Prints how many there are.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logkeep_engine.storage import local
from tests.kafka.restores import back_up

RUN = "killed"
HEARTBEAT = "heartbeat.json"
STEPS = (
    *((local.LocalStorage, name) for name in ("create", "put", "put_all", "delete")),
    (local._LocalWriter, "commit"),
)


def die_behind(step: int) -> None:
    """Let this process be killed behind so many steps. A beat of the heart is none."""
    left = step

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            done = change(*arguments, **options)
            if not any(str(argument).endswith(HEARTBEAT) for argument in arguments):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return done

        return changed

    for owner, name in STEPS:
        setattr(owner, name, counted(getattr(owner, name)))


def main(spec: dict[str, Any], folder: Path) -> None:
    """Kill a run after its first step, another after its second, and so on, until one comes to its end."""
    step = 0
    while True:
        step += 1
        copy = folder / f"killed-{step}"
        shutil.copytree(folder / "archive", copy)
        if (child := os.fork()) == 0:
            try:
                die_behind(step)
                back_up({**spec, "storage": {"uri": copy.as_uri()}}, RUN)
            except BaseException as error:
                print(error, file=sys.stderr)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            print(step)
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
