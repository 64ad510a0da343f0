"""The verdict on a kernel's bytes: the comparison with golden bytes, and the report that explains a difference."""

from kvformat.verify.compare import check as check
from kvformat.verify.report import Report as Report
