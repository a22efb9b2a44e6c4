import sys

if not sys.flags.safe_path:
    del sys.path[0]  # `python -m` inserts the working folder, whose files could shadow modules

from local_bench.cli.main import main

sys.exit(main())
