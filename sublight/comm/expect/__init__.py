"""Expected times of collectives and of expert-parallel traffic, each with an interval."""
