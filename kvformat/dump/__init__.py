"""Dumps: the K and V that a writer was given and the pages it wrote. Every judgement starts from one."""

from kvformat.dump.dump import Dump as Dump
from kvformat.dump.dump import Pages as Pages
