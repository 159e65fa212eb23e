"""The command line: click commands, one file each.

Owns arguments, exit codes and what lands on stdout and stderr. Refuses to know how a reply comes
about (that is ``engine``). Invariant: importing a module of this package costs click and nothing
else of weight; whatever a command needs, it imports when it runs.
"""
