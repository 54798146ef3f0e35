"""`python -m collectx`: the `collectx` command."""

from collectx.cli.main import main

if __name__ == "__main__":
    main()
