import sys

if not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the working folder there: a file of the user's would shadow a module

from local_bench.cli.main import main

sys.exit(main())
