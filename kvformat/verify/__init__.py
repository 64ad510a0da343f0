"""The verdict on a kernel's bytes: dumps, the comparison with golden bytes, the report that explains a difference."""

from kvformat.verify.compare import check as check
from kvformat.verify.diagnosis import Diagnosis as Diagnosis
from kvformat.verify.diagnosis import diagnose as diagnose
from kvformat.verify.diagnosis.probe import probe as probe
from kvformat.verify.dump import Dump as Dump
from kvformat.verify.linter import LintReport as LintReport
from kvformat.verify.linter import lint as lint
from kvformat.verify.report import Report as Report
