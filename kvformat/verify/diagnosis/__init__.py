"""The name of the bug: which recipe, layout and fault left the bytes of a dump."""

from kvformat.verify.diagnosis.catalogue import FAULTS as FAULTS
from kvformat.verify.diagnosis.diagnosis import Diagnosis as Diagnosis
from kvformat.verify.diagnosis.diagnosis import Explanation as Explanation
from kvformat.verify.diagnosis.diagnosis import Hypothesis as Hypothesis
from kvformat.verify.diagnosis.fault import Fault as Fault
from kvformat.verify.diagnosis.search import diagnose as diagnose
