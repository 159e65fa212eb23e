"""The parts of the chat screen.

Each owns one thing that is seen, its keys and its stylesheet beside it. Refuses to know the engine:
a widget is told what to show and posts what was done to it, in the past tense.
"""
