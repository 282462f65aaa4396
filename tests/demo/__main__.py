"""`python -m tests.demo`: a whole backup and restore on a Kubernetes node of its own, to watch.

Exits 1 on any difference. With KEEP=1 the node stays up afterwards, also after a failure; `python -m tests.demo stop`
takes it down.
"""

import os
import sys
from contextlib import ExitStack

from tests.cluster import prepare, system
from tests.demo import background, story


def main(arguments: list[str]) -> int:
    """Run the demo, or stop the one that was kept."""
    if arguments == ["stop"]:
        return background.stop()
    if arguments:
        print(f"usage: python -m tests.demo [stop], not {' '.join(arguments)}", file=sys.stderr)
        return 2
    if not system.is_root():
        print("the demo starts a Kubernetes node, for which it must be root", file=sys.stderr)
        return 2
    kept = os.environ.get("KEEP", "0") not in ("", "0")
    with prepare.demo(kept):
        if kept:
            return background.run(story.tell)
        with ExitStack() as stack:
            return story.tell(stack, None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
