"""The other process: one loaded model behind a Unix socket.

Owns the model's life, the queue of replies and the writing of each reply into the store. Refuses to
know screens, sessions lists and how it was started. Invariant: history is read from the store and
never from the wire, and a delta is in the store before anyone is told of it.
"""
