"""One month of a real shop's export. The project does not need it: tests on it are skipped, loudly, where it is absent."""

import os
from pathlib import Path

import pytest

RETAIL = Path(
    os.environ.get("PLACET_RETAIL_CSV")
    or Path(__file__).parents[2] / "shared" / "data" / "online-retail-2010-12.csv.gz"
)
a_real_export = pytest.mark.skipif(
    not RETAIL.is_file(),
    reason=f"REAL INPUT NOT TESTED: there is no {RETAIL}; set PLACET_RETAIL_CSV to December 2010 of UCI Online Retail",
)
