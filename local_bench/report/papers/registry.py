"""Every table and figure of the four papers, with the function that creates it or the reason why it is not
supported."""

import re

from local_bench.core.errors import UserError
from local_bench.core.messages import hint
from local_bench.report.papers.contents import ENTRIES
from local_bench.report.papers.entry import Entry, Kind

_NAME = re.compile(r"(?P<kind>t|tab|table|f|fig|figure)?[-. ]*(?P<number>\d{1,2})", re.I)


def papers() -> list[str]:
    return list(dict.fromkeys(entry.paper for entry in ENTRIES))


def entries(paper: str) -> list[Entry]:
    """The paper's tables, then its figures. UserError for an unknown paper."""
    if paper not in papers():
        suggestion = hint(paper, papers(), f"available: {', '.join(papers())}")
        raise UserError(f"unknown paper {paper!r}: {suggestion}")
    return [entry for entry in ENTRIES if entry.paper == paper]


def entry(paper: str, name: str) -> Entry:
    """Look up `table-2`, `t2`, `2` or `figure-3`, `fig3`. UserError if the paper has no such table or figure."""
    found = _NAME.fullmatch(name.strip())
    known = entries(paper)
    if found is not None:
        kind: Kind = "figure" if (found["kind"] or "t").lower().startswith("f") else "table"
        for one in known:
            if (one.kind, one.number) == (kind, int(found["number"])):
                return one
    raise UserError(f"{paper} has no {name!r}: `local-bench reproduce {paper}` lists its tables and figures")
