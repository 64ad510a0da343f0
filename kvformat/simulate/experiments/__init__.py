"""Experiments as data: each is a question and the pure function that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvformat.errors import unknown_name
from kvformat.simulate.experiments import bias, depth, evict, length, pareto, rounding, scale, share, sink
from kvformat.simulate.experiments import model as real_model
from kvformat.simulate.experiments.result import Experiment
from kvformat.simulate.experiments.result import Plot as Plot
from kvformat.simulate.experiments.result import Result as Result
from kvformat.simulate.experiments.result import Settings as Settings

_EXPERIMENTS = (
    Experiment("scale", "Which outliers hurt under which granularity, and where do INT8 and FP8 cross?", scale.run),
    Experiment("rounding", "How much of the error is rounding, how much the choice of scale?", rounding.run),
    Experiment("sink", "Is a sink token's key large, and does it set the scale?", sink.run),
    Experiment("depth", "How does an error grow through 80 layers, and what does normalisation hold?", depth.run),
    Experiment("length", "Is longer worse, up to 128K tokens?", length.run),
    Experiment("pareto", "Which storage of K and V gives the least KL for its bytes?", pareto.run),
    Experiment("debias", "What does taking away the constant part of keys buy and cost?", bias.run),
    Experiment("eviction", "How do eviction and quantization meet?", evict.run),
    Experiment("sharing", "What do prefix sharing and transfer between modes return?", share.run),
    Experiment(
        "model", "What does each mode do to a real model, its weights included?", real_model.run, needs_model=True
    ),
)

#: every experiment by name
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({each.name: each for each in _EXPERIMENTS})


def experiment(name: str) -> Experiment:
    """The experiment of that name. Raises InputError, naming the close names, for an unknown one."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
