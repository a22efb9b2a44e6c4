"""Writes the print shop's orders and source images again, the same each time.

.venv/bin/python -m examples.miniature.printshop
"""

from examples.miniature.printshop import orderbook
from local_bench.suites.printshop import shop

orderbook.write(shop.FOLDER)
