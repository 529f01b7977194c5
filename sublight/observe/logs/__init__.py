"""Logs of engines and training frameworks: step lines and start-up lines."""
