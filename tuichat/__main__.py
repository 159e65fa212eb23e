"""``python -m tuichat`` is the command ``tuichat``."""

from tuichat.cli.main import main

if __name__ == "__main__":
    main()
