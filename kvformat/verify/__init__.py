"""The verdict on a kernel's bytes: dumps, the comparison with golden bytes, the report that explains a difference."""

from kvformat.verify.compare import check as check
from kvformat.verify.dump import Dump as Dump
from kvformat.verify.report import Report as Report
from kvformat.verify.diagnosis import Diagnosis as Diagnosis
from kvformat.verify.diagnosis import diagnose as diagnose
from kvformat.verify.lint import LintReport as LintReport
from kvformat.verify.lint import lint as lint
