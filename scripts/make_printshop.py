"""Writes the print shop's orders and source images again, the same each time.

.venv/bin/python scripts/make_printshop.py
"""

from local_bench.suites.printshop import orderbook, shop

orderbook.write(shop.FOLDER)
