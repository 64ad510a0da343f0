"""One way to be parallel: work cut into small pure tasks, given to an executor, their results kept in a journal."""

from kvformat.tasks.journal import Journal as Journal
from kvformat.tasks.runner import LostError as LostError
from kvformat.tasks.runner import run as run
from kvformat.tasks.team import parallel as parallel
