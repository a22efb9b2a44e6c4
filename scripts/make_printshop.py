"""Writes the print shop's orders and source images again, the same each time.

.venv/bin/python -m scripts.make_printshop
"""

from local_bench.suites.printshop import shop
from scripts.printshop import orderbook

orderbook.write(shop.FOLDER)
