"""Serving: admission, steps and queues of an engine become TTFT, TPOT and throughput, with intervals."""

from sublight.predict.serving.estimate import estimate

__all__ = ["estimate"]
