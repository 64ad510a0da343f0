"""Many files: the dumps of a deployment judged one by one, and those with the same fault together."""

from kvformat.many.check import check_files as check_files
