"""`python -m ropeway`: the command line."""

from ropeway.cli.main import main

if __name__ == "__main__":
    main()
