"""`python -m local_bench`, and the script `local-bench`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # `python -m` inserts the working folder, whose files could shadow modules

import os
import signal


def run() -> int:
    """Run the command line. A signal while it is imported ends the process at once with 130: no work has begun."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(130))
    from local_bench.core.environment import collect_rarely

    collect_rarely()
    from local_bench.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
