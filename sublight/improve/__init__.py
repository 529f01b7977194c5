"""Improve: search over plans, and what to change first."""
