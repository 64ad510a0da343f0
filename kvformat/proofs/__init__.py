"""Proofs by enumeration: two recipes are equal for all inputs of a domain, or this is the smallest difference."""

from kvformat.proofs.prove import Proof as Proof
from kvformat.proofs.prove import prove as prove
