"""Models: a config.json becomes layers, and layers become parameter counts and the Ops of one rank."""

from sublight.models.families import FAMILIES
from sublight.models.families.gpt import gpt
from sublight.models.model import Layer, Model, Parameters
from sublight.models.rank import layer_ops, ops, ordered_ops, problems, step_ops
from sublight.models.read import catalog, find, from_config, hub, named, read
from sublight.models.recast import recast
from sublight.models.step import Batch, Split

__all__ = [
    "FAMILIES", "Batch", "Layer", "Model", "Parameters", "Split", "catalog", "find", "from_config", "gpt", "hub",
    "layer_ops", "named", "ops", "ordered_ops", "problems", "read", "recast", "step_ops",
]
