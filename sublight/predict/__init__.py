"""Predict: model + workload + plan + cluster -> a Trace and a Result, with intervals."""
