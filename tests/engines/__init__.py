"""Recipes judged by the engines' own code: it is fetched, compiled, executed without a GPU, and its bytes compared.

python -m tests.engines [ADAPTER ...]      # as .ci/engines does: writes the logs under spec/evidence/engines
"""
