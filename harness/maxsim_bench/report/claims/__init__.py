"""The ledger: what the paper published, what was measured, whether they can be compared, and the verdict.

Room: `report`. May import: record, declare. Claims, tolerances, the mapping to rows and remarks on the elements are
data in `experiments/paper/`; nothing here knows a number of the paper.
"""

from maxsim_bench.report.claims.ledger import Entry, Ledger, ledger
from maxsim_bench.report.claims.paper import Claim, Paper, read_paper

__all__ = ["Claim", "Entry", "Ledger", "Paper", "ledger", "read_paper"]
