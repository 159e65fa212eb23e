"""The chat screen: the only package that knows Textual.

Owns what a person sees and types. Refuses to know SQLite, torch, sockets and plugins: it talks to
``tuichat.engine`` and to nothing below it but the paths of dropped images. Invariant: the first
frame imports none of the engine, image codecs, Markdown and plugins (they come after it), and no
text from outside reaches a widget except as ``Content`` that went through ``sanitize``.
"""
