"""Discovery of backends, their isolation, and the calls into the one that a worker has chosen.

``catalog`` is for every process and imports no plugin; ``backend`` is for the worker alone.
"""
