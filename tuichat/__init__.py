"""tuichat: a chat client for local vision-language models that lives in the terminal.

Owns the version and nothing else, so that importing it costs nothing.
"""

__version__ = "0.1.0"
