"""Looks like Ctrl+C while it is imported."""

raise KeyboardInterrupt
