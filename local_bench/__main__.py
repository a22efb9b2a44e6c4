import sys

from local_bench.cli.main import main

sys.exit(main())
