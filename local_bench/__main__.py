"""`python -m local_bench`, and the script `local-bench`."""

import os
import signal
import sys


def run() -> int:
    """Run the command line. A signal while it is imported ends the process at once with 130: nothing has begun."""
    if not sys.flags.safe_path and sys.argv[0] == __file__:
        del sys.path[0]  # `python -m` puts the working folder there: a file of the user's would shadow a module
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(130))
    from local_bench.core.collector import collect_rarely

    collect_rarely()
    from local_bench.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
